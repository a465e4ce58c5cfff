/*
 * golden_check FILE: play recorded steps with the device client and compare the results bit for
 * bit. Prints the number of steps; exits with 1 at the first difference.
 */

#include "golden_file.h"

static int differs(const char *what, uint32_t c, uint32_t s)
{
    fprintf(stderr, "case %u, step %u: %s\n", (unsigned)c, (unsigned)s, what);
    return 1;
}

static int check_step(ft_device *client, const struct golden_case *from, uint32_t c, uint32_t s)
{
    const struct golden_step *step = &from->steps[s];
    const size_t bytes = from->size * sizeof *client->weights;
    if (golden_play(client, from, step) != step->code)
        return differs("another code", c, s);
    if (client->round != step->round)
        return differs("another round", c, s);
    if (client->round >= 0 && memcmp(client->weights, step->weights, bytes))
        return differs("other weights", c, s);
    if (client->residual && memcmp(client->residual, step->residual, bytes))
        return differs("another residual", c, s);
    if (step->action == GOLDEN_SEND) {
        size_t length;
        const uint8_t *upload = ft_device_pending(client, &length);
        if (length != step->length || memcmp(upload, step->data, length))
            return differs("another upload", c, s);
    }
    return 0;
}

int main(int argc, char **argv)
{
    if (argc != 2)
        golden_fail("usage: golden_check FILE");
    struct golden_file golden = golden_read(argv[1]);
    unsigned steps = 0;
    for (uint32_t c = 0; c < golden.num_cases; c++) {
        ft_device client = golden_client(&golden.cases[c]);
        for (uint32_t s = 0; s < golden.cases[c].num_steps; s++, steps++)
            if (check_step(&client, &golden.cases[c], c, s))
                return 1;
        golden_free_client(&client);
    }
    const uint16_t probe = 1;
    uint8_t first;
    memcpy(&first, &probe, 1);
    printf("%u steps passed on a %s machine with %u-bit pointers\n", steps,
           first ? "little-endian" : "big-endian", (unsigned)(8 * sizeof(void *)));
    golden_free(&golden);
    return 0;
}
