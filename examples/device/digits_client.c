/*
 * digits_client DATA HOST PORT FEDERATION CLIENT [OUTPUT]
 *
 * Takes part in a federation over MQTT 5 with the device client (native/device.c): learns to
 * recognise handwritten digits by logistic regression on the examples in DATA, which federation.py
 * writes. When the federation ends, writes the weights to OUTPUT.
 *
 * The training needs two vectors of the model's size, weights and residual: each round makes one
 * step of gradient descent, added to the residual directly. The topics are those of "Over MQTT" in
 * docs/format.md. On a microcontroller, the examples would come from sensors, and an MQTT library
 * for microcontrollers would take the place of libmosquitto.
 */

#define _POSIX_C_SOURCE 200809L

#include "device.h"

#include <inttypes.h>
#include <math.h>
#include <mosquitto.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Seconds before a request to catch up is repeated. Each repetition doubles them. */
#define FIRST_RETRY 5.0
#define LAST_RETRY 300.0
/* Seconds after which the client repeats that it is present. */
#define PRESENCE_INTERVAL 120.0

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

static void *memory(size_t bytes)
{
    void *found = calloc(bytes, 1);
    if (!found)
        fail("memory", "not enough");
    return found;
}

/* ---- The examples and the model ----------------------------------------------------------- */

struct data {
    uint32_t features;
    uint32_t classes;
    uint32_t examples;
    double p_up;
    double rate; /* learning rate */
    uint8_t terms[6];
    float *start;  /* initial weights: classes x features, then one for each class */
    float *images; /* examples x features */
    uint8_t *labels;
};

static uint64_t read_number(FILE *file, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++) {
        int byte = fgetc(file);
        if (byte == EOF)
            fail("data", "the file ends early");
        value |= (uint64_t)byte << (8 * i);
    }
    return value;
}

static float *read_floats(FILE *file, size_t count)
{
    float *values = memory(count * sizeof *values);
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = (uint32_t)read_number(file, 4);
        memcpy(&values[i], &bits, sizeof bits);
    }
    return values;
}

static double read_double(FILE *file)
{
    uint64_t bits = read_number(file, 8);
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static struct data read_data(const char *path)
{
    struct data data;
    char magic[8];
    FILE *file = fopen(path, "rb");
    if (!file)
        fail(path, "cannot be read");
    if (fread(magic, 1, sizeof magic, file) != sizeof magic || memcmp(magic, "FTDEV1\r\n", 8))
        fail(path, "not a data file of federation.py");
    data.features = (uint32_t)read_number(file, 4);
    data.classes = (uint32_t)read_number(file, 4);
    data.examples = (uint32_t)read_number(file, 4);
    data.p_up = read_double(file);
    data.rate = read_double(file);
    for (int i = 0; i < 6; i++)
        data.terms[i] = (uint8_t)read_number(file, 1);
    data.start = read_floats(file, (size_t)data.classes * (data.features + 1));
    data.images = read_floats(file, (size_t)data.examples * data.features);
    data.labels = memory(data.examples);
    for (uint32_t i = 0; i < data.examples; i++)
        data.labels[i] = (uint8_t)read_number(file, 1);
    fclose(file);
    return data;
}

/* Add one step of gradient descent on all examples to `change`. */
static void train(const struct data *data, const float *weights, float *change)
{
    const uint32_t features = data->features;
    const uint32_t classes = data->classes;
    const float *bias = weights + (size_t)classes * features;
    const float scale = (float)(data->rate / data->examples);
    float *errors = memory(classes * sizeof *errors);
    for (uint32_t e = 0; e < data->examples; e++) {
        const float *image = data->images + (size_t)e * features;
        float largest = -INFINITY;
        float sum = 0;
        for (uint32_t c = 0; c < classes; c++) {
            errors[c] = bias[c];
            for (uint32_t f = 0; f < features; f++)
                errors[c] += weights[(size_t)c * features + f] * image[f];
            largest = fmaxf(largest, errors[c]);
        }
        for (uint32_t c = 0; c < classes; c++) {
            errors[c] = expf(errors[c] - largest);
            sum += errors[c];
        }
        for (uint32_t c = 0; c < classes; c++) {
            float error = scale * (errors[c] / sum - (data->labels[e] == c));
            for (uint32_t f = 0; f < features; f++)
                change[(size_t)c * features + f] -= error * image[f];
            change[(size_t)classes * features + c] -= error;
        }
    }
    free(errors);
}

/* ---- The conversation --------------------------------------------------------------------- */

/* A client and what it knows about the federation. Like fedtern.transports.mqtt.MqttClient. */
struct member {
    ft_device client;
    const struct data *data;
    struct mosquitto *connection;
    const char *federation;
    int64_t invited_round; /* newest round that this client is invited to */
    int64_t final_round;   /* known after the federation's end, else -1 */
    double asked_at;       /* time of the open request to catch up, 0 for none */
    double retry_after;    /* seconds after which it is repeated */
    double announced_at;   /* time of the last announcement */
    double deadline;       /* seconds, as announced; 0 for no limit */
    double present_at;     /* time when the server last knew that this client is present */
    uint8_t *chunks;       /* the received part of a catch-up */
    size_t chunks_length;
    size_t chunks_room;
    uint64_t chunks_count;
    uint64_t uploads;
};

static void topic_of(const struct member *member, const char *kind, char *out, size_t room)
{
    snprintf(out, room, "fedtern/%s/%s/%" PRIu64, member->federation, kind,
             member->client.client_id);
}

static void publish(struct member *member, const char *kind, const uint8_t *data, size_t length,
                    int retain)
{
    char topic[300];
    topic_of(member, kind, topic, sizeof topic);
    mosquitto_publish(member->connection, NULL, topic, (int)length, data, 1, retain);
}

static size_t write_varint(uint8_t *out, uint64_t value)
{
    size_t length = 0;
    for (; value >= 0x80; value >>= 7)
        out[length++] = (uint8_t)(value | 0x80);
    out[length++] = (uint8_t)value;
    return length;
}

/* Read a number and move on; return 0 if there is none. */
static int read_varint(const uint8_t **data, size_t *length, uint64_t *value)
{
    *value = 0;
    for (unsigned shift = 0; shift < 64 && *length; shift += 7) {
        uint8_t byte = *(*data)++;
        (*length)--;
        *value |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80))
            return 1;
    }
    return 0;
}

static void report_presence(struct member *member)
{
    member->present_at = now();
    publish(member, "alive", (const uint8_t *)"\1", 1, 1);
}

static void ask(struct member *member)
{
    uint8_t data[10];
    if (member->asked_at > 0)
        return;
    member->asked_at = member->present_at = now();
    member->chunks_length = member->chunks_count = 0;
    publish(member, "ask", data, write_varint(data, (uint64_t)(member->client.round + 1)), 0);
}

static void upload(struct member *member)
{
    size_t length;
    const uint8_t *pending = ft_device_pending(&member->client, &length);
    uint8_t *data = memory(length + 10);
    size_t head = write_varint(data, member->data->examples);
    memcpy(data + head, pending, length);
    publish(member, "up", data, head + length, 0);
    free(data);
}

static int is_invited(const struct member *member)
{
    return member->client.round >= 0 && member->invited_round == member->client.round;
}

/* The request to catch up has been answered. */
static void close_request(struct member *member)
{
    member->asked_at = 0;
    member->retry_after = FIRST_RETRY;
    member->chunks_length = member->chunks_count = 0;
}

/* Exit after errors that the next message does not fix. */
static void check(int code)
{
    if (code == FT_DEVICE_OTHER_VERSION || code == FT_DEVICE_OTHER_LAYOUT ||
        code == FT_DEVICE_OTHER_METHOD || code == FT_DEVICE_OTHER_HISTORY)
        fail("message", ft_device_describe(code));
    if (code != FT_DEVICE_OK && code != FT_DEVICE_MISSED_ROUNDS)
        fprintf(stderr, "ignored a message: %s\n", ft_device_describe(code));
}

static void receive_announcement(struct member *member, const uint8_t *data, size_t length)
{
    ft_device_event event;
    uint64_t time;
    const int was_invited = is_invited(member);
    if (!read_varint(&data, &length, &time))
        return;
    const int code = ft_device_receive(&member->client, data, length, &event);
    check(code);
    if ((code != FT_DEVICE_OK && code != FT_DEVICE_MISSED_ROUNDS) || event.leads_to < event.since)
        return; /* damaged, or an old message that the broker retained */
    member->announced_at = now();
    member->deadline = 1e-3 * (double)(time >> 1);
    member->final_round = time & 1 ? event.leads_to : -1;
    if (code == FT_DEVICE_MISSED_ROUNDS) {
        ask(member);
        return;
    }
    close_request(member);
    if (event.invited == 1) {
        member->invited_round = member->client.round;
        if (event.since == event.leads_to && member->client.pending)
            upload(member); /* it may have been lost */
    }
    /* A client whose upload did not count may be unresponsive to the server. */
    if (was_invited && event.round > event.since && event.counted != 1)
        report_presence(member);
}

static void receive_chunk(struct member *member, const uint8_t *data, size_t length)
{
    ft_device_event event;
    uint64_t number;
    uint64_t count;
    if (!read_varint(&data, &length, &number) || !read_varint(&data, &length, &count) ||
        number >= count || length < 2 || *data > 3)
        return;
    const uint8_t flags = *data++;
    length--;
    if (number != member->chunks_count) /* of another answer, or a chunk was lost */
        member->chunks_length = member->chunks_count = 0;
    if (number != member->chunks_count || length > member->chunks_room - member->chunks_length)
        return;
    memcpy(member->chunks + member->chunks_length, data, length);
    member->chunks_length += length;
    member->chunks_count++;
    if (member->asked_at > 0)
        member->asked_at = now(); /* no timeout while the answer makes progress */
    if (member->chunks_count < count)
        return;
    const int code =
        ft_device_receive(&member->client, member->chunks, member->chunks_length, &event);
    member->chunks_length = member->chunks_count = 0;
    check(code);
    if (code == FT_DEVICE_MISSED_ROUNDS) {
        member->asked_at = 0;
        ask(member);
    }
    if (code != FT_DEVICE_OK)
        return;
    printf("caught up from round %lld to %lld\n", (long long)event.since, (long long)event.round);
    member->announced_at = now();
    close_request(member);
    if (flags & 2)
        member->final_round = member->client.round;
    if (flags & 1) {
        member->invited_round = member->client.round;
        if (member->client.pending)
            upload(member);
    }
}

/* Request missed rounds after a long silence, or report that the client is present. */
static void tick(struct member *member)
{
    const double time = now();
    if (member->asked_at > 0) {
        if (time < member->asked_at + member->retry_after)
            return;
        member->retry_after = fmin(2 * member->retry_after, LAST_RETRY);
    } else if (member->deadline <= 0 ||
               time < member->announced_at + 1.5 * member->deadline + member->retry_after) {
        if (time > member->present_at + PRESENCE_INTERVAL)
            report_presence(member);
        return;
    }
    member->asked_at = 0;
    ask(member);
}

static void on_connect(struct mosquitto *connection, void *object, int result)
{
    struct member *member = object;
    char topic[300];
    if (result)
        fail("the broker refused the connection", mosquitto_connack_string(result));
    topic_of(member, "down", topic, sizeof topic);
    mosquitto_subscribe(connection, NULL, topic, 0);
    snprintf(topic, sizeof topic, "fedtern/%s/round", member->federation);
    mosquitto_subscribe(connection, NULL, topic, 0);
    member->announced_at = now();
    member->asked_at = 0;
    report_presence(member);
    if (member->client.round < 0)
        ask(member);
}

static void on_message(struct mosquitto *connection, void *object,
                       const struct mosquitto_message *message)
{
    struct member *member = object;
    char topic[300];
    (void)connection;
    snprintf(topic, sizeof topic, "fedtern/%s/round", member->federation);
    if (!strcmp(message->topic, topic))
        receive_announcement(member, message->payload, (size_t)message->payloadlen);
    else
        receive_chunk(member, message->payload, (size_t)message->payloadlen);
}

static void take_part(struct member *member)
{
    ft_device *client = &member->client;
    while (member->final_round < 0 || client->round < member->final_round) {
        if (is_invited(member) && !client->pending && member->final_round < 0) {
            train(member->data, client->weights, client->residual);
            int code = ft_device_send_delta(client, NULL);
            if (code != FT_DEVICE_OK)
                fail("upload", ft_device_describe(code));
            member->uploads++;
            upload(member);
        }
        int result = mosquitto_loop(member->connection, 100, 1);
        if (result) {
            fprintf(stderr, "%s: reconnecting\n", mosquitto_strerror(result));
            nanosleep(&(struct timespec){1, 0}, NULL);
            mosquitto_reconnect(member->connection);
        }
        tick(member);
    }
}

/* Report that the client leaves: a connection that is closed in order has no last will. */
static void leave(struct member *member)
{
    publish(member, "alive", NULL, 0, 1);
    for (int i = 0; i < 20 && mosquitto_want_write(member->connection); i++)
        mosquitto_loop(member->connection, 50, 1);
    mosquitto_loop(member->connection, 100, 1);
    mosquitto_disconnect(member->connection);
}

static void write_weights(const char *path, const ft_device *client)
{
    FILE *file = fopen(path, "wb");
    if (!file)
        fail(path, "cannot be written");
    for (uint32_t i = 0; i < client->size; i++) {
        uint32_t bits;
        memcpy(&bits, &client->weights[i], sizeof bits);
        for (int byte = 0; byte < 4; byte++)
            fputc((int)(bits >> (8 * byte) & 0xff), file);
    }
    if (fclose(file))
        fail(path, "cannot be written");
}

int main(int argc, char **argv)
{
    struct member member;
    char topic[300];
    if (argc < 6)
        fail("usage", "digits_client DATA HOST PORT FEDERATION CLIENT [OUTPUT]");
    const struct data data = read_data(argv[1]);
    setvbuf(stdout, NULL, _IOLBF, 0);
    memset(&member, 0, sizeof member);
    member.data = &data;
    member.federation = argv[4];
    member.invited_round = member.final_round = -1;
    member.retry_after = FIRST_RETRY;

    ft_device *client = &member.client;
    client->client_id = strtoull(argv[5], NULL, 10);
    client->method = FT_DEVICE_STC;
    client->p_up = data.p_up;
    client->size = data.classes * (data.features + 1);
    memcpy(client->terms, data.terms, sizeof client->terms);
    client->weights = data.start;
    client->residual = memory(client->size * sizeof(float));
    client->upload_room = ft_device_upload_room(client->method, client->size, client->p_up);
    client->upload = memory(client->upload_room);
    member.chunks_room = 4 * (size_t)client->size + 64; /* the longest catch-up: the whole model */
    member.chunks = memory(member.chunks_room);
    int code = ft_device_start(client, member.federation, strlen(member.federation));
    if (code != FT_DEVICE_OK)
        fail("start", ft_device_describe(code));

    mosquitto_lib_init();
    member.connection = mosquitto_new(NULL, true, &member);
    if (!member.connection)
        fail("mosquitto", "no connection object");
    mosquitto_int_option(member.connection, MOSQ_OPT_PROTOCOL_VERSION, MQTT_PROTOCOL_V5);
    mosquitto_int_option(member.connection, MOSQ_OPT_TCP_NODELAY, 1);
    topic_of(&member, "alive", topic, sizeof topic);
    mosquitto_will_set(member.connection, topic, 0, NULL, 1, true);
    mosquitto_connect_callback_set(member.connection, on_connect);
    mosquitto_message_callback_set(member.connection, on_message);
    code = mosquitto_connect(member.connection, argv[2], atoi(argv[3]), 60);
    if (code)
        fail("the broker cannot be reached", mosquitto_strerror(code));
    take_part(&member);
    leave(&member);

    printf("the federation ended at round %lld; %llu uploads\n", (long long)client->round,
           (unsigned long long)member.uploads);
    if (argc > 6)
        write_weights(argv[6], client);
    mosquitto_destroy(member.connection);
    mosquitto_lib_cleanup();
    free(client->weights);
    free(client->residual);
    free(client->upload);
    free(member.chunks);
    free(data.images);
    free(data.labels);
    return 0;
}
