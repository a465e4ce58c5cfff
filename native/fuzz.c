/*
 * fuzz FILE ITERATIONS [SEED]: give mutated golden messages to the device client.
 *
 * FILE is a golden file (golden_file.h). Build with -fsanitize=address,undefined. Each iteration
 * takes a client at a random step of a golden federation, may let it make an upload of a random
 * change, and gives it some mutated messages. Checks, besides those of the sanitizers:
 *
 *   - a message that is refused changes nothing
 *   - a message that is accepted never takes the client back, and leaves weights that are finite
 *   - an upload is one that the client itself can read, and upload and residual together are the
 *     change that went in
 *
 * Prints how often each code occurred.
 */

#include "golden_file.h"

#define LONGEST 8192 /* bytes of a mutated message */

/* ---- Random numbers ------------------------------------------------------------------------ */

static uint64_t state;

static uint64_t next_random(void)
{
    uint64_t z = (state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* Below `end`, which is not 0. */
static uint32_t below(uint32_t end)
{
    return (uint32_t)(next_random() >> 32) % end;
}

static int chance(uint32_t percent)
{
    return below(100) < percent;
}

/* ---- Messages ------------------------------------------------------------------------------ */

struct message {
    uint8_t data[LONGEST];
    uint32_t length;
};

static void append(struct message *message, const uint8_t *data, uint32_t length)
{
    if (length > LONGEST - message->length)
        length = LONGEST - message->length;
    memcpy(message->data + message->length, data, length);
    message->length += length;
}

static void append_varint(struct message *message, uint64_t value)
{
    uint8_t byte;
    for (; value >= 0x80; value >>= 7) {
        byte = (uint8_t)(value | 0x80);
        append(message, &byte, 1);
    }
    byte = (uint8_t)value;
    append(message, &byte, 1);
}

/* Replace `removed` bytes at `at`. */
static void splice(struct message *message, uint32_t at, uint32_t removed, const uint8_t *data,
                   uint32_t length)
{
    static uint8_t tail[LONGEST];
    if (removed > message->length - at)
        removed = message->length - at;
    const uint32_t rest = message->length - at - removed;
    memcpy(tail, message->data + at + removed, rest);
    message->length = at;
    append(message, data, length);
    append(message, tail, rest);
}

static uint32_t checksum(const uint8_t *data, uint32_t length)
{
    uint32_t crc = UINT32_MAX;
    for (uint32_t i = 0; i < length; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? UINT32_C(0xedb88320) : 0);
    }
    return ~crc;
}

static void store(uint8_t *out, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        out[i] = (uint8_t)(value >> (8 * i));
}

static void seal(struct message *message)
{
    if (message->length >= 4)
        store(message->data + message->length - 4,
              checksum(message->data, message->length - 4), 4);
}

/* A number near a limit that readers check. */
static uint64_t interesting_number(uint32_t size)
{
    const uint64_t numbers[] = {0,
                                1,
                                size,
                                size + 1,
                                8 * (uint64_t)size + 4096,
                                (uint64_t)1 << 24,
                                ((uint64_t)1 << 24) + 1,
                                UINT32_MAX,
                                (uint64_t)1 << 32,
                                UINT64_MAX,
                                (uint64_t)1 << 63,
                                next_random() >> below(64)};
    return numbers[below(sizeof numbers / sizeof *numbers)];
}

static uint32_t interesting_float(void)
{
    const uint32_t floats[] = {0,          0x80000000, 1,          0x7f800000, 0xff800000,
                               0x7fc00000, 0x71800000, 0x71800001, 0x5f800000, 0x5f800001,
                               0x3f800000, 0xbf800000, (uint32_t)next_random()};
    return floats[below(sizeof floats / sizeof *floats)];
}

/* Change some bytes behind the envelope's first two. */
static void mutate_body(struct message *message, const struct golden_file *golden, uint32_t size)
{
    struct message number;
    uint8_t bytes[8];
    for (uint32_t changes = 1 + below(3); changes && message->length > 6; changes--) {
        const uint32_t body = message->length - 6;
        /* Most of the time behind the head, where most of the rules are. */
        const uint32_t head = body > 13 && chance(85) ? 13 : 0;
        const uint32_t at = 2 + head + below(body - head);
        switch (below(9)) {
        case 0:
        case 1:
            message->data[at] = (uint8_t)(message->data[at] ^ 1u << below(8));
            break;
        case 2:
            message->data[at] = (uint8_t)next_random();
            break;
        case 3:
            splice(message, at, 1 + below(chance(80) ? 3 : body), bytes, 0);
            break;
        case 4:
            store(bytes, next_random(), 8);
            splice(message, at, 0, bytes, 1 + below(8));
            break;
        case 5:
            number.length = 0;
            append_varint(&number, interesting_number(size));
            splice(message, at, below(3), number.data, number.length);
            break;
        case 6:
            store(bytes, interesting_float(), 4);
            splice(message, at, 4, bytes, 4);
            break;
        case 7: { /* a part of another message */
            const struct golden_case *other = &golden->cases[below(golden->num_cases)];
            const struct golden_step *step = &other->steps[below(other->num_steps)];
            if (step->length) {
                const uint32_t from = below(step->length);
                splice(message, at, below(16), step->data + from, 1 + below(step->length - from));
            }
            break;
        }
        default: /* repeat a part of this one */
            memcpy(bytes, message->data + at, message->length - at < 8 ? 1 : 8);
            splice(message, at, 0, bytes, message->length - at < 8 ? 1 : 8);
        }
    }
}

/* Set the head to the client's round and history: with another one, most messages are refused. */
static void fit_head(struct message *message, const ft_device *client)
{
    if (message->length < 19 || client->round < 0)
        return;
    memcpy(message->data + 2, client->terms, 6);
    memcpy(message->data + 8, client->stamp, 3);
    if ((message->data[1] & 15) != 3) /* a catch-up leads to a later round */
        store(message->data + 11, (uint64_t)client->round, 4);
}

static uint64_t read_varint(const uint8_t *data, uint32_t length, uint32_t *at)
{
    uint64_t value = 0;
    for (unsigned shift = 0; *at < length && shift < 63; shift += 7) {
        uint8_t byte = data[(*at)++];
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80))
            break;
    }
    return value;
}

/* Change broadcasts of a replay, and the stamps of those that follow. */
static void mutate_replay(struct message *message, const struct golden_file *golden, uint32_t size)
{
    static struct message whole;
    static struct message part;
    uint32_t at = 15;
    whole.length = 0;
    read_varint(message->data, message->length, &at);
    append(&whole, message->data, at);
    uint8_t stamp[3];
    memcpy(stamp, message->data + 8, 3);
    while (at + 4 < message->length) {
        uint64_t length = read_varint(message->data, message->length, &at);
        if (at + 4 > message->length || length > message->length - 4 - at)
            break;
        part.length = 0;
        append(&part, message->data + at, (uint32_t)length);
        at += (uint32_t)length;
        if (chance(25))
            mutate_body(&part, golden, size);
        if (part.length >= 11 && !chance(3))
            memcpy(part.data + 8, stamp, 3);
        seal(&part);
        if (part.length >= 4)
            memcpy(stamp, part.data + part.length - 4, 3);
        append_varint(&whole, part.length);
        append(&whole, part.data, part.length);
    }
    append(&whole, message->data, 4); /* room for the checksum */
    *message = whole;
}

static void mutate(struct message *message, const ft_device *client,
                   const struct golden_file *golden)
{
    const int replay = message->length > 20 && (message->data[1] & 15) == 3 &&
                       (message->data[15] & 3) == 0;
    if (chance(70))
        fit_head(message, client);
    if (replay && chance(80))
        mutate_replay(message, golden, client->size);
    else if (chance(95))
        mutate_body(message, golden, client->size);
    if (message->length > 2 && chance(2))
        message->data[below(2)] = (uint8_t)next_random();
    if (!chance(3))
        seal(message);
    if (chance(2) && message->length)
        message->length = below(message->length);
}

/* ---- Clients ------------------------------------------------------------------------------- */

/* Everything that a client remembers, as bytes. */
struct image {
    uint8_t *bytes;
    size_t length;
};

static struct image make_image(const ft_device *client)
{
    const size_t vector = client->size * sizeof(float);
    struct image image;
    image.length = sizeof *client + 4 * vector + client->upload_room;
    image.bytes = calloc(image.length, 1);
    return image;
}

static void copy_part(void *part, size_t length, uint8_t **at, int restore)
{
    if (part && restore)
        memcpy(part, *at, length);
    else if (part)
        memcpy(*at, part, length);
    *at += part ? length : 0;
}

/* Save a client's state to an image, or restore it. The memory stays the same. */
static void copy_state(ft_device *client, struct image *image, int restore)
{
    const size_t vector = client->size * sizeof(float);
    uint8_t *at = image->bytes;
    copy_part(client, sizeof *client, &at, restore);
    copy_part(client->weights, vector, &at, restore);
    copy_part(client->residual, vector, &at, restore);
    copy_part(client->base, vector, &at, restore);
    copy_part(client->counts, vector, &at, restore);
    copy_part(client->upload, client->upload_room, &at, restore);
}

static void fail(const char *what, uint64_t iteration)
{
    fprintf(stderr, "iteration %llu: %s\n", (unsigned long long)iteration, what);
    abort();
}

static int is_finite(float value)
{
    return value - value == 0;
}

/* One client of each golden case, its state after each step, and room to compare states. */
struct player {
    ft_device client;
    ft_device reader; /* reads the client's uploads as if they were broadcasts */
    struct image *after;
    struct image before;
    struct image now;
    float *change; /* what the client has learnt */
    float *target; /* plus the residual */
};

static struct player make_player(const struct golden_case *from)
{
    struct player player;
    player.client = golden_client(from);
    player.reader = golden_client(from);
    player.after = golden_memory(from->num_steps * sizeof *player.after);
    player.before = make_image(&player.client);
    player.now = make_image(&player.client);
    player.change = golden_memory(from->size * sizeof *player.change);
    player.target = golden_memory(from->size * sizeof *player.target);
    for (uint32_t s = 0; s < from->num_steps; s++) {
        golden_play(&player.client, from, &from->steps[s]);
        player.after[s] = make_image(&player.client);
        copy_state(&player.client, &player.after[s], 0);
    }
    return player;
}

static void free_player(struct player *player, const struct golden_case *from)
{
    for (uint32_t s = 0; s < from->num_steps; s++)
        free(player->after[s].bytes);
    free(player->after);
    free(player->before.bytes);
    free(player->now.bytes);
    free(player->change);
    free(player->target);
    golden_free_client(&player->client);
    golden_free_client(&player->reader);
}

static void expect_unchanged(struct player *player, uint64_t iteration)
{
    copy_state(&player->client, &player->now, 0);
    if (memcmp(player->before.bytes, player->now.bytes, player->before.length))
        fail("a refusal changed the client", iteration);
}

static void random_change(float *change, uint32_t size)
{
    const uint32_t kind = below(5);
    for (uint32_t i = 0; i < size; i++) {
        uint32_t bits = 0;
        if (kind == 0 && chance(90))
            bits = 0x3f000000 | (uint32_t)next_random() >> 8; /* about 1 */
        else if (kind == 1 && chance(10))
            bits = 0x3f800000; /* ties and zeros */
        else if (kind == 2)
            bits = (uint32_t)next_random() & 0x807fffff; /* subnormal numbers */
        else if (kind == 3)
            bits = (uint32_t)next_random() & 0xbfffffff; /* any magnitude up to 2 */
        else if (kind == 4)
            bits = chance(2) ? interesting_float() : 0x3dcccccd;
        memcpy(&change[i], &bits, sizeof bits);
    }
}

/* Read the pending upload as a broadcast to zeros; compare with the change that went in. */
static void check_upload(struct player *player, uint64_t iteration)
{
    static struct message message;
    ft_device_event event;
    ft_device *reader = &player->reader;
    size_t length;
    const uint8_t *upload = ft_device_pending(&player->client, &length);
    memset(reader->weights, 0, reader->size * sizeof *reader->weights);
    if (!upload || ft_device_start(reader, NULL, 0) != FT_DEVICE_OK)
        fail("no upload", iteration);
    message.length = 0;
    append(&message, upload, 15);
    message.data[1] = 0x12;
    append(&message, (const uint8_t *)"\0", 2); /* nobody counted, everybody may upload */
    append(&message, upload + 15, (uint32_t)length - 15);
    fit_head(&message, reader);
    seal(&message);
    if (ft_device_receive(reader, message.data, message.length, &event) != FT_DEVICE_OK)
        fail("an upload cannot be read", iteration);
    if (!player->client.residual)
        return;
    for (uint32_t i = 0; i < reader->size; i++) {
        /* The same subtraction in the same order: equal bit for bit, up to the sign of zero. */
        float rest = player->target[i] - reader->weights[i];
        if (rest != player->client.residual[i])
            fail("an upload and the residual are not what went in", iteration);
    }
}

static int send_something(struct player *player, uint64_t iteration)
{
    ft_device *client = &player->client;
    float *delta = player->change;
    random_change(player->change, client->size);
    for (uint32_t i = 0; client->residual && i < client->size; i++)
        player->target[i] = client->residual[i] + player->change[i];
    if (client->residual && chance(30)) {
        /* Let the change be in the residual already; after a refusal it stays there. */
        memcpy(client->residual, player->target, client->size * sizeof *player->target);
        delta = NULL;
    }
    copy_state(client, &player->before, 0);
    const int code = ft_device_send_delta(client, delta);
    if (code == FT_DEVICE_OK)
        check_upload(player, iteration);
    else
        expect_unchanged(player, iteration);
    return code;
}

static int receive_something(struct player *player, const struct golden_file *golden,
                             const struct golden_case *from, uint64_t iteration)
{
    static struct message message;
    ft_device_event event;
    ft_device *client = &player->client;
    const struct golden_step *step = &from->steps[below(from->num_steps)];
    message.length = 0;
    append(&message, step->data, step->length);
    mutate(&message, client, golden);
    /* Memory of exactly this length, so that the sanitizer sees a byte more. */
    uint8_t *data = golden_memory(message.length);
    memcpy(data, message.data, message.length);
    copy_state(client, &player->before, 0);
    const int64_t round = client->round;
    const int code = ft_device_receive(client, data, message.length, &event);
    free(data);
    if (code != FT_DEVICE_OK)
        expect_unchanged(player, iteration);
    if (client->round < round || event.round != client->round || event.since != round)
        fail("wrong rounds", iteration);
    for (uint32_t i = 0; i < client->size; i++)
        if (client->round >= 0 && !is_finite(client->weights[i]))
            fail("a weight is not finite", iteration);
    return code;
}

int main(int argc, char **argv)
{
    if (argc < 3)
        golden_fail("usage: fuzz FILE ITERATIONS [SEED]");
    struct golden_file golden = golden_read(argv[1]);
    const uint64_t iterations = strtoull(argv[2], NULL, 10);
    const uint64_t seed = argc > 3 ? strtoull(argv[3], NULL, 10) : 0;
    uint64_t received[1 - FT_DEVICE_BAD_ARGUMENT] = {0};
    uint64_t sent[1 - FT_DEVICE_BAD_ARGUMENT] = {0};
    struct player *players = golden_memory(golden.num_cases * sizeof *players);
    for (uint32_t c = 0; c < golden.num_cases; c++)
        players[c] = make_player(&golden.cases[c]);
    for (uint64_t iteration = 0; iteration < iterations; iteration++) {
        /* Every iteration can be repeated alone. */
        state = seed * UINT64_C(0xd1342543de82ef95) + iteration;
        const uint32_t c = below(golden.num_cases);
        const struct golden_case *from = &golden.cases[c];
        struct player *player = &players[c];
        copy_state(&player->client, &player->after[below(from->num_steps)], 1);
        if (chance(40))
            sent[-send_something(player, iteration)]++;
        for (uint32_t left = 1 + below(2); left; left--)
            received[-receive_something(player, &golden, from, iteration)]++;
    }
    printf("%llu iterations, seed %llu\n", (unsigned long long)iterations,
           (unsigned long long)seed);
    for (int code = 0; code >= FT_DEVICE_BAD_ARGUMENT; code--)
        if (received[-code] || sent[-code])
            printf("%10llu received, %9llu sent: %s\n", (unsigned long long)received[-code],
                   (unsigned long long)sent[-code], ft_device_describe(code));
    for (uint32_t c = 0; c < golden.num_cases; c++)
        free_player(&players[c], &golden.cases[c]);
    free(players);
    golden_free(&golden);
    return 0;
}
