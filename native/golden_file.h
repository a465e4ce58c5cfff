/*
 * golden_file.h: reads the file of recorded steps that tests/native/golden_file.py writes.
 *
 * For test programs only. All numbers are little-endian:
 *
 *     8 bytes "FTGOLD1\n"; u32 cases; for each case:
 *       u8 method; f64 p_up; 6 bytes terms; u64 client id; u32 size; u32 tensors, for each u32 rows
 *       and u32 columns; u32 length and bytes of the federation's name; size f32 initial weights;
 *       u32 steps; for each step:
 *         u8 action; f32[size] new weights (action SEND only);
 *         u32 length and bytes: the message received, or the upload expected;
 *         i32 expected code; i64 expected round; f32[size] expected weights, f32[size] residual
 */
#ifndef FEDTERN_GOLDEN_FILE_H
#define FEDTERN_GOLDEN_FILE_H

#include "device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum golden_action { GOLDEN_START, GOLDEN_JOIN, GOLDEN_RECEIVE, GOLDEN_SEND };

struct golden_step {
    int action;
    float *new_weights;
    uint8_t *data;
    uint32_t length;
    int code;
    int64_t round;
    float *weights;
    float *residual;
};

struct golden_case {
    int method;
    double p_up;
    uint8_t terms[6];
    uint64_t client_id;
    uint32_t size;
    uint32_t num_tensors;
    ft_device_tensor *tensors;
    char *federation;
    uint32_t federation_length;
    float *start;
    uint32_t num_steps;
    struct golden_step *steps;
};

struct golden_file {
    uint32_t num_cases;
    struct golden_case *cases;
};

static void golden_fail(const char *what)
{
    fprintf(stderr, "%s\n", what);
    exit(2);
}

static void *golden_memory(size_t bytes)
{
    void *memory = malloc(bytes ? bytes : 1);
    if (!memory)
        golden_fail("out of memory");
    return memory;
}

static uint8_t *golden_bytes(FILE *file, size_t count)
{
    uint8_t *bytes = golden_memory(count);
    if (fread(bytes, 1, count, file) != count)
        golden_fail("the golden file ends early");
    return bytes;
}

static uint64_t golden_number(FILE *file, int bytes)
{
    uint8_t *data = golden_bytes(file, (size_t)bytes);
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++)
        value |= (uint64_t)data[i] << (8 * i);
    free(data);
    return value;
}

static float *golden_floats(FILE *file, uint32_t count)
{
    float *values = golden_memory(count * sizeof *values);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t bits = (uint32_t)golden_number(file, 4);
        memcpy(&values[i], &bits, sizeof bits);
    }
    return values;
}

static void golden_read_step(FILE *file, struct golden_step *step, uint32_t size)
{
    step->action = (int)golden_number(file, 1);
    step->new_weights = step->action == GOLDEN_SEND ? golden_floats(file, size) : NULL;
    step->length = (uint32_t)golden_number(file, 4);
    step->data = golden_bytes(file, step->length);
    step->code = (int)(int32_t)(uint32_t)golden_number(file, 4);
    step->round = (int64_t)golden_number(file, 8);
    step->weights = golden_floats(file, size);
    step->residual = golden_floats(file, size);
}

static struct golden_file golden_read(const char *path)
{
    struct golden_file golden;
    FILE *file = fopen(path, "rb");
    if (!file)
        golden_fail("the golden file cannot be read");
    uint8_t *magic = golden_bytes(file, 8);
    if (memcmp(magic, "FTGOLD1\n", 8))
        golden_fail("not a golden file");
    free(magic);
    golden.num_cases = (uint32_t)golden_number(file, 4);
    golden.cases = golden_memory(golden.num_cases * sizeof *golden.cases);
    for (uint32_t c = 0; c < golden.num_cases; c++) {
        struct golden_case *found = &golden.cases[c];
        found->method = (int)golden_number(file, 1);
        uint64_t p_bits = golden_number(file, 8);
        memcpy(&found->p_up, &p_bits, sizeof found->p_up);
        uint8_t *terms = golden_bytes(file, sizeof found->terms);
        memcpy(found->terms, terms, sizeof found->terms);
        free(terms);
        found->client_id = golden_number(file, 8);
        found->size = (uint32_t)golden_number(file, 4);
        found->num_tensors = (uint32_t)golden_number(file, 4);
        found->tensors = golden_memory(found->num_tensors * sizeof *found->tensors);
        for (uint32_t t = 0; t < found->num_tensors; t++) {
            found->tensors[t].rows = (uint32_t)golden_number(file, 4);
            found->tensors[t].columns = (uint32_t)golden_number(file, 4);
        }
        found->federation_length = (uint32_t)golden_number(file, 4);
        found->federation = (char *)golden_bytes(file, found->federation_length);
        found->start = golden_floats(file, found->size);
        found->num_steps = (uint32_t)golden_number(file, 4);
        found->steps = golden_memory(found->num_steps * sizeof *found->steps);
        for (uint32_t s = 0; s < found->num_steps; s++)
            golden_read_step(file, &found->steps[s], found->size);
    }
    fclose(file);
    return golden;
}

static void golden_free(struct golden_file *golden)
{
    for (uint32_t c = 0; c < golden->num_cases; c++) {
        struct golden_case *found = &golden->cases[c];
        for (uint32_t s = 0; s < found->num_steps; s++) {
            free(found->steps[s].new_weights);
            free(found->steps[s].data);
            free(found->steps[s].weights);
            free(found->steps[s].residual);
        }
        free(found->tensors);
        free(found->federation);
        free(found->start);
        free(found->steps);
    }
    free(golden->cases);
}

/* A client for a case, with memory of its own. */
static ft_device golden_client(const struct golden_case *from)
{
    ft_device client;
    const size_t size = from->size;
    memset(&client, 0, sizeof client);
    client.client_id = from->client_id;
    client.p_up = from->p_up;
    client.size = from->size;
    client.method = (uint8_t)from->method;
    memcpy(client.terms, from->terms, sizeof client.terms);
    client.tensors = from->tensors;
    client.num_tensors = from->num_tensors;
    client.weights = golden_memory(size * sizeof *client.weights);
    memcpy(client.weights, from->start, size * sizeof *client.weights);
    if (from->method == FT_DEVICE_SIGNSGD) {
        client.base = calloc(size, sizeof *client.base);
        client.counts = calloc(size, sizeof *client.counts);
    } else {
        client.residual = calloc(size, sizeof *client.residual);
    }
    client.upload_room = ft_device_upload_room(from->method, from->size, from->p_up);
    client.upload = calloc(client.upload_room, 1);
    return client;
}

static void golden_free_client(ft_device *client)
{
    free(client->weights);
    free(client->residual);
    free(client->base);
    free(client->counts);
    free(client->upload);
}

/* Do what a step says; return the code. */
static int golden_play(ft_device *client, const struct golden_case *from,
                       const struct golden_step *step)
{
    ft_device_event event;
    switch (step->action) {
    case GOLDEN_START:
        memcpy(client->weights, from->start, from->size * sizeof *client->weights);
        return ft_device_start(client, from->federation, from->federation_length);
    case GOLDEN_JOIN:
        return ft_device_join(client);
    case GOLDEN_RECEIVE:
        return ft_device_receive(client, step->data, step->length, &event);
    default:
        return ft_device_send(client, step->new_weights);
    }
}

#endif /* FEDTERN_GOLDEN_FILE_H */
