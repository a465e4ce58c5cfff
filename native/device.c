/* The client of device.h. Comments here say why; the header says what, docs/format.md defines the
 * messages. */

#include "device.h"

#include <float.h>
#include <string.h>

#if defined(__FAST_MATH__)
#error "Compile without -ffast-math: the weights must equal the server's bit for bit."
#endif
#if FLT_EVAL_METHOD == 2
#error "Compile for SSE2 or another unit that rounds every operation to the type's precision."
#endif

/* Kinds of messages, modes of catch-ups, flags of update sequences, codecs. */
enum { UPLOAD = 1, BROADCAST = 2, CATCH_UP = 3, COHORT_NOTICE = 5 };
enum { REPLAY = 0, SUM = 1, MODEL = 2, INITIAL = 3 };
enum { HALF = 1, BYTES = 2 }; /* encodings of an initial model */
enum { TERNARY = 1, PER_TENSOR = 2, NESTED = 4 };
enum {
    NOTHING = 0,
    DENSE = 1,
    TERNARY_UPDATE = 3,
    SIGNS = 5,
    UPDATE_SEQUENCE = 6,
    SIGN_COUNTS = 7
};

enum { MAGIC = 0xFE, HEAD = 13, FRAME = 6, STAMP = 3, CRC = 4 };

/* Bit positions in a message are 32-bit numbers. */
#define LONGEST_MESSAGE (((size_t)1 << 29) - 1)
#define MAX_UPDATES ((uint32_t)1 << 24)

/* Magnitudes are compared as the bits of the float without its sign, shifted left by one: these
 * integers have the order of the magnitudes, with infinity and NaN at the top. */
#define ABOVE_2_93 ((((uint32_t)(127 + 93) << 23) + 1) << 1)
#define ABOVE_2_100 ((((uint32_t)(127 + 100) << 23) + 1) << 1)
#define ABOVE_2_64 ((((uint32_t)(127 + 64) << 23) + 1) << 1)

/* ---- Bytes and bits -------------------------------------------------------------------------- */

static uint32_t float_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static uint32_t magnitude(float value)
{
    return float_bits(value) << 1;
}

static uint32_t load_u32(const uint8_t *data)
{
    return (uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 |
           (uint32_t)data[3] << 24;
}

static void store_u32(uint8_t *out, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        out[i] = (uint8_t)(value >> (8 * i));
}

static float load_float(const uint8_t *data)
{
    uint32_t bits = load_u32(data);
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static int get_bit(const uint8_t *data, uint32_t at)
{
    return data[at >> 3] >> (at & 7) & 1;
}

static void set_bit(uint8_t *data, uint32_t at)
{
    data[at >> 3] = (uint8_t)(data[at >> 3] | 1u << (at & 7));
}

/* Byte by byte, so that nothing behind the field is read. */
static uint64_t get_bits(const uint8_t *data, uint32_t at, unsigned width)
{
    uint64_t value = 0;
    unsigned got = 0;
    unsigned skip = at & 7;
    for (data += at >> 3; got < width; data++) {
        unsigned take = width - got < 8 - skip ? width - got : 8 - skip;
        value |= (uint64_t)(*data >> skip & ((1u << take) - 1)) << got;
        got += take;
        skip = 0;
    }
    return value;
}

static uint32_t crc32_add(uint32_t crc, const uint8_t *data, size_t length)
{
    /* Four bits at a time: a table for bytes would take a kilobyte. */
    static const uint32_t table[16] = {
        0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac, 0x76dc4190, 0x6b6b51f4,
        0x4db26158, 0x5005713c, 0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c,
        0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c,
    };
    crc = ~crc;
    for (size_t i = 0; i < length; i++) {
        crc ^= data[i];
        crc = crc >> 4 ^ table[crc & 15];
        crc = crc >> 4 ^ table[crc & 15];
    }
    return ~crc;
}

/* ---- Reading messages ------------------------------------------------------------------------ */

/* A cursor over a message. Reading past the end sets `bad` and gives zeros from then on. */
struct reader {
    const uint8_t *at;
    const uint8_t *end;
    int bad;
};

static size_t bytes_left(const struct reader *in)
{
    return (size_t)(in->end - in->at);
}

static void refuse(struct reader *in)
{
    in->bad = 1;
    in->at = in->end;
}

/* The next bytes; callers look at `bad` before they look at the bytes. */
static const uint8_t *take(struct reader *in, uint64_t count)
{
    const uint8_t *start = in->at;
    if (count > bytes_left(in)) {
        refuse(in);
        return in->end;
    }
    in->at += count;
    return start;
}

static uint8_t take_byte(struct reader *in)
{
    const uint8_t *byte = take(in, 1);
    return in->bad ? 0 : *byte;
}

static uint64_t take_varint(struct reader *in)
{
    uint64_t value = 0;
    unsigned shift = 0;
    for (;;) {
        uint8_t byte = take_byte(in);
        value |= (uint64_t)(byte & 0x7f) << shift;
        /* The tenth byte holds the last of 64 bits; only the shortest form is valid. */
        if ((shift == 63 && byte > 1) || (shift && !byte))
            refuse(in);
        if (in->bad)
            return 0;
        if (!(byte & 0x80))
            return value;
        shift += 7;
    }
}

/* A field of bits whose padding is zero. */
static const uint8_t *take_bits(struct reader *in, uint64_t bits)
{
    const uint8_t *field = take(in, (bits + 7) / 8);
    unsigned used = (unsigned)(bits & 7);
    if (!in->bad && used && in->at[-1] >> used)
        refuse(in);
    return field;
}

/* Floats that are finite and at most 2**100 in magnitude. */
static const uint8_t *take_floats(struct reader *in, uint64_t count)
{
    const uint8_t *values = take(in, 4 * count);
    if (!in->bad)
        for (const uint8_t *value = values; value != in->at; value += 4)
            if (load_u32(value) << 1 >= ABOVE_2_100) {
                refuse(in);
                break;
            }
    return values;
}

static float take_step(struct reader *in)
{
    const uint8_t *data = take_floats(in, 1);
    float step = in->bad ? 0 : load_float(data);
    if (!(step > 0))
        refuse(in);
    return step;
}

/* Read a set of client ids; return whether `wanted` is one of them. */
static int take_ids(struct reader *in, uint64_t wanted)
{
    uint64_t count = take_varint(in);
    uint64_t next = 0; /* one more than the previous id */
    int full = 0;      /* the previous id was the last one that there is */
    int found = 0;
    for (; count && !in->bad; count--) {
        uint64_t gap = take_varint(in);
        uint64_t id = next + gap;
        if (full || id < next)
            refuse(in);
        found |= id == wanted;
        next = id + 1;
        full = next == 0;
    }
    return found && !in->bad;
}

/* Read which clients may upload; return whether `wanted` is one of them. */
static int take_cohort(struct reader *in, uint64_t wanted)
{
    uint8_t named = take_byte(in);
    if (named > 1)
        refuse(in);
    return named ? take_ids(in, wanted) : 1;
}

/* ---- Envelopes ------------------------------------------------------------------------------- */

/* What comes before the body of a message. */
struct head {
    uint8_t kind;
    const uint8_t *stamp;
    uint32_t round;
    /* Catch-ups of version 2. */
    uint8_t addressed;
    int refusal;                /* code for a message that this client must not apply */
    const uint8_t *since_stamp; /* before a model; or NULL */
};

/*
 * Check the envelope and the terms of a message of one of these kinds (a bit each); leave a reader
 * of what follows the head.
 */
static int open_message(const ft_device *client, const uint8_t *data, size_t length,
                        unsigned kinds, struct head *head, struct reader *in)
{
    if (length < FRAME || data[0] != MAGIC)
        return FT_DEVICE_BAD_MESSAGE;
    /* Only catch-ups have a second version. */
    const int addressed = data[1] == (2 << 4 | CATCH_UP) && kinds >> CATCH_UP & 1;
    if (data[1] >> 4 != FT_DEVICE_FORMAT && !addressed)
        return FT_DEVICE_OTHER_VERSION;
    if (length > LONGEST_MESSAGE)
        return FT_DEVICE_UNSUPPORTED;
    if (crc32_add(0, data, length - CRC) != load_u32(data + length - CRC))
        return FT_DEVICE_BAD_MESSAGE;
    head->kind = data[1] & 15;
    head->addressed = (uint8_t)addressed;
    head->refusal = FT_DEVICE_OK;
    head->since_stamp = NULL;
    if (!(kinds >> head->kind & 1) || length < FRAME + sizeof client->terms)
        return FT_DEVICE_BAD_MESSAGE;
    if (memcmp(data + 2, client->terms, 3))
        return FT_DEVICE_OTHER_LAYOUT;
    if (memcmp(data + 5, client->terms + 3, 3))
        return FT_DEVICE_OTHER_METHOD;
    if (length < FRAME + HEAD)
        return FT_DEVICE_BAD_MESSAGE;
    head->stamp = data + 8;
    head->round = load_u32(data + 11);
    if (head->round > 0xfffffffeu - (head->kind == BROADCAST))
        return FT_DEVICE_BAD_MESSAGE;
    in->at = data + 2 + HEAD;
    in->end = data + length - CRC;
    in->bad = 0;
    return FT_DEVICE_OK;
}

/* Put an upload of `length` bytes, of which the payload is written, into its envelope. */
static void seal_upload(ft_device *client, size_t length)
{
    uint8_t *out = client->upload;
    out[0] = MAGIC;
    out[1] = FT_DEVICE_FORMAT << 4 | UPLOAD;
    memcpy(out + 2, client->terms, 6);
    memcpy(out + 8, client->stamp, STAMP);
    store_u32(out + 11, (uint32_t)client->round);
    store_u32(out + length - CRC, crc32_add(0, out, length - CRC));
    client->pending = length;
}

/* ---- Golomb-coded positions ------------------------------------------------------------------ */

/* The largest density for which b = 1, 2, 3, ... low bits are used, as the format lists them. */
static const double widest_density[48] = {
    0.38196601125010515,    0.21384862224257672,    0.11334822068783774,
    0.05837811234436449,    0.029627964306660624,   0.014925365419787404,
    0.007490738289958024,   0.0037524094332564077,  0.0018779680987181053,
    0.0009394253093149434,  0.00046982302149323424, 0.00023493910893907167,
    0.00011747645482825534, 5.8739952605143694e-05, 2.9370407612993524e-05,
    1.468531163568568e-05,  7.34268277533801e-06,   3.67134812706754e-06,
    1.8356757483864967e-06, 9.178382954068166e-07,  4.5891925300684866e-07,
    2.2945965282929047e-07, 1.1472983299611253e-07, 5.7364918143423184e-08,
    2.868245948305333e-08,  1.4341229844362103e-08, 7.170614947889911e-09,
    3.5853074803721703e-09, 1.7926537417928889e-09, 8.963268712981454e-10,
    4.481634357494979e-10,  2.2408171789985525e-10, 1.120408589562042e-10,
    5.6020429479671245e-11, 2.801021474022791e-11,  1.4005107370212026e-11,
    7.002553685130531e-12,  3.501276842571395e-12,  1.75063842128723e-12,
    8.753192106439981e-13,  4.376596053220948e-13,  2.1882980266107133e-13,
    1.0941490133054165e-13, 5.470745066527232e-14,  2.7353725332636535e-14,
    1.367686266631836e-14,  6.838431333159204e-15,  3.419215666579608e-15,
};

/* Low bits of each gap. Both numbers are below 2**53, so that they are exact as double. */
static unsigned golomb_width(uint64_t count, uint64_t size)
{
    unsigned width = 0;
    if (!count)
        return 0;
    const double density = (double)count / (double)size;
    while (width < 48 && widest_density[width] >= density)
        width++;
    return width;
}

/* A cursor over coded positions. */
struct gaps {
    const uint8_t *remainders;
    const uint8_t *quotients;
    uint32_t remainder_at; /* in bits */
    uint32_t quotient_at;
    uint32_t quotient_bits;
    unsigned width;
    uint64_t next; /* one more than the previous position */
    uint64_t size;
};

/* `count` positions below `size` that end with the message. */
static void open_gaps(struct gaps *gaps, struct reader *in, uint64_t count, uint64_t size)
{
    memset(gaps, 0, sizeof *gaps);
    if (count > size)
        refuse(in);
    gaps->size = size;
    gaps->width = in->bad ? 0 : golomb_width(count, size);
    gaps->remainders = take_bits(in, count * gaps->width);
    gaps->quotient_bits = (uint32_t)(8 * bytes_left(in));
    gaps->quotients = take(in, bytes_left(in));
}

/* Advance to the next position, `gaps->next - 1`; return 0 if there is no valid one. */
static int next_position(struct gaps *gaps)
{
    const uint64_t most = gaps->size >> gaps->width;
    uint64_t quotient = 0;
    for (;; quotient++) {
        if (gaps->quotient_at >= gaps->quotient_bits || quotient > most)
            return 0;
        if (!get_bit(gaps->quotients, gaps->quotient_at++))
            break;
    }
    gaps->next += (quotient << gaps->width) +
                  get_bits(gaps->remainders, gaps->remainder_at, gaps->width) + 1;
    gaps->remainder_at += gaps->width;
    return gaps->next <= gaps->size;
}

/* Whether the message ends where the last position does, with zeros as padding. */
static int gaps_end_here(const struct gaps *gaps)
{
    uint32_t used = gaps->quotient_at;
    if ((used + 7) / 8 != gaps->quotient_bits / 8)
        return 0;
    return !(used & 7) || !(gaps->quotients[used >> 3] >> (used & 7));
}

/* ---- Updates of some positions: ternary updates and sequences of them ------------------------ */

/* A cursor over the entries: changes of one position by one update, in the order to add them. */
struct entries {
    struct gaps keys;
    struct gaps rows; /* if nested: the positions that change */
    uint64_t num_rows;
    uint64_t rows_read;
    uint32_t updates;
    int nested;
    uint32_t position; /* of the current entry */
    uint32_t update;
};

/* Advance to the next entry; return 0 if there is no valid one. */
static int next_entry(struct entries *entries)
{
    if (!next_position(&entries->keys))
        return 0;
    uint64_t key = entries->keys.next - 1;
    uint64_t row = key;
    entries->update = 0;
    if (entries->updates > 1) {
        row = key / entries->updates;
        entries->update = (uint32_t)(key - row * entries->updates);
    }
    if (!entries->nested) {
        entries->position = (uint32_t)row;
        return 1;
    }
    /* Every row has an entry, so the next entry is in this row or in the next one. */
    if (row + 1 == entries->rows_read)
        return 1;
    if (row != entries->rows_read || !next_position(&entries->rows))
        return 0;
    entries->rows_read++;
    entries->position = (uint32_t)(entries->rows.next - 1);
    return 1;
}

static int entries_end_here(const struct entries *entries)
{
    if (!gaps_end_here(&entries->keys))
        return 0;
    return !entries->nested ||
           (entries->rows_read == entries->num_rows && gaps_end_here(&entries->rows));
}

/* What follows the codec in a payload. */
struct payload {
    uint8_t codec;
    uint8_t flags;
    uint32_t updates;
    uint32_t count;        /* entries */
    float step;            /* signs and sign counts */
    unsigned width;        /* sign counts: bits of each */
    const uint8_t *values; /* dense: values; else: a magnitude for each update, or values */
    const uint8_t *signs;  /* one bit for each entry or parameter; sign counts: ups */
    struct entries entries;
};

static uint32_t take_num_updates(struct reader *in)
{
    uint64_t updates = take_varint(in);
    if (updates < 1 || updates > MAX_UPDATES)
        refuse(in);
    return in->bad ? 1 : (uint32_t)updates;
}

static uint32_t take_count(struct reader *in, uint32_t size)
{
    uint64_t count = take_varint(in);
    if (count > size)
        refuse(in);
    return in->bad ? 0 : (uint32_t)count;
}

/* Read the header of entries. A ternary update has the form of a sequence of one update. */
static void open_entries(struct payload *payload, struct reader *in, uint32_t size)
{
    struct entries *entries = &payload->entries;
    memset(entries, 0, sizeof *entries);
    payload->count = take_count(in, size);
    if (payload->flags & TERNARY) {
        payload->values = take_floats(in, payload->updates);
        payload->signs = take_bits(in, payload->count);
    } else {
        payload->values = take_floats(in, payload->count);
    }
    entries->updates = payload->updates;
    entries->nested = (payload->flags & NESTED) != 0;
    if (entries->nested) {
        entries->num_rows = take_count(in, size);
        uint64_t length = take_varint(in);
        struct reader inner = *in;
        take(in, length);
        inner.end = in->at;
        inner.bad = in->bad;
        open_gaps(&entries->rows, &inner, entries->num_rows, size);
        if (inner.bad)
            refuse(in);
        size = (uint32_t)entries->num_rows;
    }
    open_gaps(&entries->keys, in, payload->count, (uint64_t)size * payload->updates);
}

/* Whether all entries are valid, and each update with an entry (and no other) has a magnitude. */
static int entries_are_valid(const struct payload *payload)
{
    /* The updates with an entry, as many as fit; with more updates, the entries are read again. */
    uint8_t used[256];
    const uint32_t window = 8 * (uint32_t)sizeof used;
    for (uint32_t first = 0; first < payload->updates; first += window) {
        struct entries entries = payload->entries;
        memset(used, 0, sizeof used);
        for (uint32_t j = 0; j < payload->count; j++) {
            if (!next_entry(&entries))
                return 0;
            uint32_t update = entries.update - first;
            if (update < window)
                set_bit(used, update);
        }
        if (!entries_end_here(&entries))
            return 0;
        if (!(payload->flags & TERNARY))
            break;
        for (uint32_t i = 0; i < window && first + i < payload->updates; i++) {
            float mu = load_float(payload->values + 4 * (size_t)(first + i));
            if (mu < 0 || (mu > 0) != get_bit(used, i))
                return 0;
        }
    }
    return 1;
}

/* The value of entry j, which was read last. */
static float entry_value(const struct payload *payload, const struct entries *entries, uint32_t j)
{
    if (!(payload->flags & TERNARY))
        return load_float(payload->values + 4 * (size_t)j);
    float value = load_float(payload->values + 4 * (size_t)entries->update);
    return get_bit(payload->signs, j) ? value : -value;
}

static void add_entries(const struct payload *payload, float *out)
{
    struct entries entries = payload->entries;
    for (uint32_t j = 0; j < payload->count && next_entry(&entries); j++)
        out[entries.position] += entry_value(payload, &entries, j);
}

/* ---- Payloads -------------------------------------------------------------------------------- */

static int ups_are_valid(const struct payload *payload, uint32_t size)
{
    for (uint32_t i = 0; i < size; i++)
        if (get_bits(payload->signs, i * payload->width, payload->width) > payload->updates)
            return 0;
    return 1;
}

static void open_sign_counts(struct payload *payload, struct reader *in, uint32_t size)
{
    payload->updates = take_num_updates(in);
    payload->step = take_step(in);
    for (payload->width = 0; payload->updates >> payload->width; payload->width++)
        ;
    payload->signs = take_bits(in, (uint64_t)size * payload->width);
    if (!in->bad && !ups_are_valid(payload, size))
        refuse(in);
}

/*
 * Read and check everything that is left of a message as a payload of this codec, or, in a
 * broadcast, of none. Returns a code.
 */
static int open_payload(const ft_device *client, struct payload *payload, struct reader *in,
                        uint8_t codec, int may_be_nothing)
{
    memset(payload, 0, sizeof *payload);
    payload->updates = 1;
    payload->codec = take_byte(in);
    if (in->bad)
        return FT_DEVICE_BAD_MESSAGE;
    if (payload->codec == NOTHING && may_be_nothing) {
        ; /* no more bytes */
    } else if (payload->codec != codec) {
        return FT_DEVICE_BAD_MESSAGE;
    } else if (codec == DENSE) {
        payload->values = take_floats(in, client->size);
    } else if (FT_DEVICE_WITH_SIGNSGD && codec == SIGNS) {
        payload->step = take_step(in);
        payload->width = 1;
        payload->signs = take_bits(in, client->size);
    } else if (FT_DEVICE_WITH_SIGNSGD && codec == SIGN_COUNTS) {
        open_sign_counts(payload, in, client->size);
    } else if (FT_DEVICE_WITH_STC) {
        payload->flags = TERNARY;
        if (codec == UPDATE_SEQUENCE) {
            payload->flags = take_byte(in);
            if (payload->flags & PER_TENSOR)
                return FT_DEVICE_UNSUPPORTED; /* this client does not know the tensors */
            if (payload->flags > (TERNARY | NESTED))
                refuse(in);
            payload->updates = take_num_updates(in);
        }
        open_entries(payload, in, client->size);
        if (!in->bad && !entries_are_valid(payload))
            refuse(in);
    }
    return in->bad || bytes_left(in) ? FT_DEVICE_BAD_MESSAGE : FT_DEVICE_OK;
}

/* Count signs, so that sign counts give the same weights as the signs one by one. */
static void count_signs(ft_device *client, const struct payload *payload)
{
    const uint32_t size = client->size;
    if (!client->sign_updates || client->step != payload->step ||
        client->sign_updates + payload->updates > MAX_UPDATES) {
        memcpy(client->base, client->weights, size * sizeof *client->base);
        memset(client->counts, 0, size * sizeof *client->counts);
        client->sign_updates = 0;
        client->step = payload->step;
    }
    client->sign_updates += payload->updates;
    for (uint32_t i = 0; i < size; i++) {
        int32_t ups = (int32_t)get_bits(payload->signs, i * payload->width, payload->width);
        client->counts[i] += 2 * ups - (int32_t)payload->updates;
        /* The product is exact in binary64. */
        double change = (double)client->step * (double)client->counts[i];
        client->weights[i] = (float)((double)client->base[i] + change);
    }
}

/* Add a payload without signs. */
static void add_update(const struct payload *payload, uint32_t size, float *out)
{
    if (payload->codec == DENSE)
        for (uint32_t i = 0; i < size; i++)
            out[i] += load_float(payload->values + 4 * (size_t)i);
    else if (FT_DEVICE_WITH_STC)
        add_entries(payload, out);
}

/* ---- Residual -------------------------------------------------------------------------------- */

/* A finite binary16 number; binary32 holds every one. */
static float half_to_float(uint32_t bits)
{
    const uint32_t exponent = bits >> 10 & 31;
    const uint32_t fraction = bits & 1023;
    float value;
    if (exponent) {
        const uint32_t wide = (exponent + 127 - 15) << 23 | fraction << 13;
        memcpy(&value, &wide, sizeof value);
    } else {
        value = (float)fraction / 16777216; /* subnormal: a multiple of 2**-24 */
    }
    return bits >> 15 ? -value : value;
}

#if FT_DEVICE_FLOAT16_RESIDUAL
static float get_residual(ft_device_residual half)
{
    return half_to_float(half);
}

/* Round a finite number to the nearest binary16 number, ties to even. */
static ft_device_residual make_residual(float value)
{
    const uint32_t sign = float_bits(value) >> 16 & 0x8000;
    const uint32_t bits = float_bits(value) & 0x7fffffff;
    uint32_t half;
    if (bits >= 0x477fe000) /* 65504, the largest one: infinity would never leave the residual */
        half = 0x7bff;
    else if (bits < 0x38800000) /* subnormal: next to 0.5, numbers are 2**-24 apart */
        half = float_bits((value < 0 ? -value : value) + 0.5f) - float_bits(0.5f);
    else
        half = (bits - ((127 - 15) << 23) + 0xfff + (bits >> 13 & 1)) >> 13;
    return (ft_device_residual)(sign | half);
}

/* Add a payload without signs to the residual. */
static void give_back(const struct payload *payload, uint32_t size, ft_device_residual *out)
{
    struct entries entries = payload->entries;
    if (payload->codec == DENSE)
        for (uint32_t i = 0; i < size; i++)
            out[i] = make_residual(get_residual(out[i]) + load_float(payload->values + 4 * (size_t)i));
    else if (FT_DEVICE_WITH_STC)
        for (uint32_t j = 0; j < payload->count && next_entry(&entries); j++)
            out[entries.position] = make_residual(get_residual(out[entries.position]) +
                                                  entry_value(payload, &entries, j));
}
#else
static float get_residual(ft_device_residual value)
{
    return value;
}

static ft_device_residual make_residual(float value)
{
    return value;
}

static void give_back(const struct payload *payload, uint32_t size, ft_device_residual *out)
{
    add_update(payload, size, out);
}
#endif

/* Advance the weights by a payload that open_payload has checked. */
static void apply(ft_device *client, const struct payload *payload)
{
    const uint8_t codec = payload->codec;
    if (FT_DEVICE_WITH_SIGNSGD && (codec == SIGNS || codec == SIGN_COUNTS)) {
        count_signs(client, payload);
    } else if (codec == DENSE || payload->count) {
        add_update(payload, client->size, client->weights);
        client->sign_updates = 0;
    }
}

/* ---- Receiving ------------------------------------------------------------------------------- */

/* A broadcast that has been checked. */
struct broadcast {
    struct head head;
    const uint8_t *next_stamp;
    int counted; /* the client's upload is in it */
    int invited; /* the client may upload to the next round */
    struct payload payload;
};

static int read_broadcast(const ft_device *client, struct broadcast *broadcast, struct reader *in)
{
    broadcast->counted = take_ids(in, client->client_id);
    broadcast->invited = take_cohort(in, client->client_id);
    broadcast->next_stamp = in->end; /* the checksum begins there */
    if (in->bad)
        return FT_DEVICE_BAD_MESSAGE;
    return open_payload(client, &broadcast->payload, in, client->method, 1);
}

/* Drop the pending upload; what did not count goes back to the residual. */
static void settle(ft_device *client, int counted, ft_device_event *event)
{
    if (!client->pending)
        return;
    event->counted = (int8_t)counted;
    if (!counted && client->method != FT_DEVICE_SIGNSGD) {
        struct payload payload;
        struct reader in = {client->upload + 2 + HEAD, client->upload + client->pending - CRC, 0};
        if (open_payload(client, &payload, &in, client->method, 0) == FT_DEVICE_OK)
            give_back(&payload, client->size, client->residual);
    }
    client->pending = 0;
}

static int follows(const ft_device *client, const struct head *head)
{
    return !memcmp(head->stamp, client->stamp, STAMP);
}

static void advance(ft_device *client, const struct broadcast *broadcast, ft_device_event *event)
{
    settle(client, broadcast->counted, event);
    apply(client, &broadcast->payload);
    memcpy(client->stamp, broadcast->next_stamp, STAMP);
    client->round++;
}

static int receive_broadcast(ft_device *client, const struct head *head, struct reader *in,
                             ft_device_event *event)
{
    struct broadcast broadcast;
    broadcast.head = *head;
    int code = read_broadcast(client, &broadcast, in);
    if (code != FT_DEVICE_OK)
        return code;
    event->leads_to = (int64_t)head->round + 1;
    if (head->round > client->round)
        return FT_DEVICE_MISSED_ROUNDS;
    if (head->round == client->round) {
        if (!follows(client, head))
            return FT_DEVICE_OTHER_HISTORY;
        advance(client, &broadcast, event);
        event->how = FT_DEVICE_BROADCAST;
    } else if (event->leads_to == client->round &&
               memcmp(broadcast.next_stamp, client->stamp, STAMP)) {
        return FT_DEVICE_OTHER_HISTORY; /* it leads to this round, but not to these weights */
    }
    event->invited = (int8_t)broadcast.invited;
    return FT_DEVICE_OK;
}

static int receive_notice(const ft_device *client, const struct head *head, struct reader *in,
                          ft_device_event *event)
{
    int invited = take_cohort(in, client->client_id);
    if (in->bad || bytes_left(in))
        return FT_DEVICE_BAD_MESSAGE;
    event->leads_to = head->round;
    if (head->round > client->round)
        return FT_DEVICE_MISSED_ROUNDS;
    if (head->round == client->round) {
        if (!follows(client, head))
            return FT_DEVICE_OTHER_HISTORY;
        event->how = FT_DEVICE_NOTICE;
        event->invited = (int8_t)invited;
    }
    return FT_DEVICE_OK;
}

/* The next broadcast of a replay, which must be that of `round` and have this stamp, unless NULL. */
static int next_broadcast(const ft_device *client, struct reader *in, int64_t round,
                          const uint8_t *stamp, struct broadcast *broadcast)
{
    struct reader inner;
    uint64_t length = take_varint(in);
    const uint8_t *data = take(in, length);
    if (in->bad)
        return FT_DEVICE_BAD_MESSAGE;
    int code =
        open_message(client, data, (size_t)length, 1u << BROADCAST, &broadcast->head, &inner);
    if (code != FT_DEVICE_OK)
        return code;
    if (broadcast->head.round != round)
        return FT_DEVICE_BAD_MESSAGE;
    if (stamp && memcmp(broadcast->head.stamp, stamp, STAMP))
        return FT_DEVICE_BAD_MESSAGE;
    return read_broadcast(client, broadcast, &inner);
}

/* Check what follows from the head and from `stamp`, that of the target round. Returns a code. */
static int check_target(const ft_device *client, const struct head *head, const uint8_t *stamp)
{
    if (head->refusal != FT_DEVICE_OK)
        return head->refusal;
    if (head->round == client->round && memcmp(stamp, client->stamp, STAMP))
        return FT_DEVICE_OTHER_HISTORY;
    return FT_DEVICE_OK;
}

static int receive_replay(ft_device *client, const struct head *head, int64_t since,
                          struct reader *in, ft_device_event *event)
{
    struct broadcast broadcast;
    struct reader again = *in;
    const uint8_t *stamp = head->stamp;
    int other_history = 0;
    if (bytes_left(in) > 8 * (size_t)client->size + 4096)
        return FT_DEVICE_BAD_MESSAGE;
    /* Every broadcast is checked before the first one is applied. */
    for (int64_t round = since; round < head->round; round++) {
        int code = next_broadcast(client, in, round, stamp, &broadcast);
        if (code != FT_DEVICE_OK)
            return code;
        if (round == client->round)
            other_history = !follows(client, &broadcast.head);
        stamp = broadcast.next_stamp;
    }
    if (in->bad || bytes_left(in))
        return FT_DEVICE_BAD_MESSAGE;
    int code = check_target(client, head, stamp);
    if (code != FT_DEVICE_OK || head->round <= client->round)
        return code;
    if (since > client->round)
        return FT_DEVICE_MISSED_ROUNDS;
    if (other_history)
        return FT_DEVICE_OTHER_HISTORY;
    stamp = head->stamp;
    for (int64_t round = since; round < head->round; round++) {
        next_broadcast(client, &again, round, stamp, &broadcast);
        if (round == client->round)
            advance(client, &broadcast, event);
        stamp = broadcast.next_stamp;
    }
    event->how = FT_DEVICE_REPLAY;
    event->invited = (int8_t)broadcast.invited;
    return FT_DEVICE_OK;
}

static int has_counts(const ft_device *client)
{
    return FT_DEVICE_WITH_SIGNSGD && client->base && client->counts;
}

/* Read and check everything that is left of a message as the sum of several updates. */
static int open_sum(const ft_device *client, struct payload *payload, struct reader *in)
{
    if (in->bad || !bytes_left(in))
        return FT_DEVICE_BAD_MESSAGE;
    const uint8_t codec = *in->at == SIGN_COUNTS ? SIGN_COUNTS : UPDATE_SEQUENCE;
    if (codec == SIGN_COUNTS ? !has_counts(client) : !FT_DEVICE_WITH_STC)
        return FT_DEVICE_UNSUPPORTED;
    return open_payload(client, payload, in, codec, 0);
}

static int receive_sum(ft_device *client, const struct head *head, int64_t since, int counted,
                       struct reader *in, ft_device_event *event)
{
    struct payload payload;
    const uint8_t *next_stamp = take(in, STAMP);
    int code = open_sum(client, &payload, in);
    if (code == FT_DEVICE_OK)
        code = check_target(client, head, next_stamp);
    if (code != FT_DEVICE_OK || head->round <= client->round)
        return code;
    if (since != client->round)
        return FT_DEVICE_MISSED_ROUNDS;
    if (!follows(client, head))
        return FT_DEVICE_OTHER_HISTORY;
    settle(client, counted, event);
    apply(client, &payload);
    memcpy(client->stamp, next_stamp, STAMP);
    client->round = head->round;
    event->how = FT_DEVICE_SUM;
    return FT_DEVICE_OK;
}

static int receive_model(ft_device *client, const struct head *head, int64_t since, int counted,
                         struct reader *in, ft_device_event *event)
{
    struct payload payload;
    struct reader inner = {in->at, in->end, 0};
    const uint8_t *values = take(in, 1 + 4 * (uint64_t)client->size);
    if (in->bad)
        return FT_DEVICE_BAD_MESSAGE;
    inner.end = in->at;
    int code = open_payload(client, &payload, &inner, DENSE, 0);
    int more = bytes_left(in) > 0;
    if (code == FT_DEVICE_OK && more && *in->at == SIGN_COUNTS && !has_counts(client))
        code = FT_DEVICE_UNSUPPORTED;
    else if (code == FT_DEVICE_OK && more)
        code = open_payload(client, &payload, in, SIGN_COUNTS, 0);
    if (code == FT_DEVICE_OK)
        code = check_target(client, head, head->stamp);
    if (code != FT_DEVICE_OK || head->round <= client->round)
        return code;
    if (since != client->round)
        return FT_DEVICE_MISSED_ROUNDS;
    if (head->since_stamp && memcmp(head->since_stamp, client->stamp, STAMP))
        return FT_DEVICE_OTHER_HISTORY;
    settle(client, counted, event);
    for (uint32_t i = 0; i < client->size; i++)
        client->weights[i] = load_float(values + 1 + 4 * (size_t)i);
    client->sign_updates = 0;
    if (more)
        apply(client, &payload);
    memcpy(client->stamp, head->stamp, STAMP);
    client->round = head->round;
    event->how = FT_DEVICE_MODEL;
    return FT_DEVICE_OK;
}

/* An encoded initial model. */
struct initial {
    uint8_t encoding;
    const uint8_t *scales; /* bytes: one for each row */
    const uint8_t *values;
};

static float load_half(const uint8_t *data)
{
    return half_to_float((uint32_t)data[0] | (uint32_t)data[1] << 8);
}

static void open_halves(struct initial *initial, struct reader *in, uint32_t size)
{
    initial->values = take(in, 2 * (uint64_t)size);
    if (in->bad)
        return;
    for (uint32_t i = 0; i < size; i++)
        if ((initial->values[2 * (size_t)i + 1] >> 2 & 31) == 31) { /* infinite or NaN */
            refuse(in);
            return;
        }
}

static void open_bytes(struct initial *initial, struct reader *in, uint32_t size, uint64_t rows)
{
    initial->scales = take(in, 4 * rows);
    initial->values = take(in, size);
    if (in->bad)
        return;
    for (uint64_t row = 0; row < rows; row++) {
        const float scale = load_float(initial->scales + 4 * (size_t)row);
        if (magnitude(scale) >= ABOVE_2_93 || scale < 0)
            refuse(in);
    }
    for (uint32_t i = 0; i < size; i++)
        if (initial->values[i] == 0x80) /* -128: the largest levels are -127 and 127 */
            refuse(in);
}

/* Read and check an initial model. Returns a code. */
static int open_initial(const ft_device *client, struct initial *initial, struct reader *in)
{
    memset(initial, 0, sizeof *initial);
    initial->encoding = take_byte(in);
    if (!in->bad && initial->encoding == HALF) {
        open_halves(initial, in, client->size);
    } else if (!in->bad && initial->encoding == BYTES) {
        uint64_t rows = 0;
        uint64_t values = 0;
        if (!client->tensors)
            return FT_DEVICE_UNSUPPORTED;
        for (uint32_t t = 0; t < client->num_tensors && values <= client->size; t++) {
            const ft_device_tensor tensor = client->tensors[t];
            rows += tensor.columns ? tensor.rows : 0;
            values += (uint64_t)tensor.rows * tensor.columns;
        }
        if (values != client->size)
            return FT_DEVICE_BAD_ARGUMENT;
        open_bytes(initial, in, client->size, rows);
    } else {
        refuse(in);
    }
    return in->bad ? FT_DEVICE_BAD_MESSAGE : FT_DEVICE_OK;
}

static void set_initial(ft_device *client, const struct initial *initial)
{
    float *out = client->weights;
    const uint8_t *scale = initial->scales;
    const uint8_t *level = initial->values;
    if (initial->encoding == HALF) {
        for (uint32_t i = 0; i < client->size; i++)
            out[i] = load_half(initial->values + 2 * (size_t)i);
        return;
    }
    for (uint32_t t = 0; t < client->num_tensors; t++) {
        const ft_device_tensor tensor = client->tensors[t];
        for (uint32_t row = 0; tensor.columns && row < tensor.rows; row++, scale += 4)
            for (uint32_t i = 0; i < tensor.columns; i++, level++)
                *out++ = load_float(scale) * (float)(*level < 128 ? *level : *level - 256);
    }
}

/* Check the broadcasts of all rounds up to that of `head`. Returns a code. */
static int check_broadcasts(const ft_device *client, const struct head *head, struct reader in)
{
    struct broadcast broadcast;
    const uint8_t *stamp = NULL;
    if (bytes_left(&in) > 8 * (size_t)client->size + 4096)
        return FT_DEVICE_BAD_MESSAGE;
    for (int64_t round = 0; round < head->round; round++) {
        int code = next_broadcast(client, &in, round, stamp, &broadcast);
        if (code != FT_DEVICE_OK)
            return code;
        stamp = broadcast.next_stamp;
    }
    if (in.bad || bytes_left(&in) || memcmp(stamp, head->stamp, STAMP))
        return FT_DEVICE_BAD_MESSAGE;
    return FT_DEVICE_OK;
}

/* The initial model, and all broadcasts or their sum, for a client without weights. */
static int receive_initial(ft_device *client, const struct head *head, struct reader *in,
                           ft_device_event *event)
{
    struct initial initial;
    struct payload payload = {0}; /* stays empty if there are broadcasts instead */
    int code = open_initial(client, &initial, in);
    struct reader marker = *in;
    const int has_broadcasts = code == FT_DEVICE_OK && head->round && !take_byte(&marker) &&
                               !marker.bad;
    if (has_broadcasts)
        code = check_broadcasts(client, head, marker);
    else if (code == FT_DEVICE_OK && head->round)
        code = open_sum(client, &payload, in);
    else if (code == FT_DEVICE_OK && bytes_left(in))
        code = FT_DEVICE_BAD_MESSAGE;
    if (code == FT_DEVICE_OK)
        code = check_target(client, head, head->stamp);
    if (code != FT_DEVICE_OK || head->round <= client->round)
        return code;
    if (client->round != -1)
        return FT_DEVICE_MISSED_ROUNDS;
    set_initial(client, &initial);
    client->sign_updates = 0;
    for (int64_t round = 0; has_broadcasts && round < head->round; round++) {
        struct broadcast broadcast;
        next_broadcast(client, &marker, round, NULL, &broadcast);
        apply(client, &broadcast.payload);
    }
    if (head->round && !has_broadcasts)
        apply(client, &payload);
    memcpy(client->stamp, head->stamp, STAMP);
    client->round = head->round;
    event->how = FT_DEVICE_INITIAL;
    return FT_DEVICE_OK;
}

/* Whether an earlier upload has left something that the client could send twice. */
static int has_unsent_values(const ft_device *client)
{
    if (client->pending)
        return 1;
    for (uint32_t i = 0; client->residual && i < client->size; i++)
        if (get_residual(client->residual[i]) != 0)
            return 1;
    return 0;
}

static int receive_catch_up(ft_device *client, struct head *head, struct reader *in,
                            ft_device_event *event)
{
    uint64_t addressee = head->addressed ? take_varint(in) : client->client_id;
    uint64_t lag = take_varint(in);
    int uploaded_later = head->addressed ? (int)(lag >> 3 & 1) : 0;
    if (head->addressed)
        lag = lag >> 4 << 3 | (lag & 7);
    int mode = (int)(lag & 3);
    int counted = (int)(lag >> 2 & 1);
    int64_t since = (int64_t)head->round - (int64_t)(lag >> 3);
    if (in->bad || since < (mode == MODEL || mode == INITIAL ? -1 : 0) ||
        (mode == INITIAL && since >= 0) || (counted && (mode == REPLAY || since < 0)) ||
        (uploaded_later && (counted || since < 0)))
        return FT_DEVICE_BAD_MESSAGE;
    if (head->addressed && mode == MODEL && since >= 0)
        head->since_stamp = take(in, STAMP);
    if (in->bad)
        return FT_DEVICE_BAD_MESSAGE;
    if (addressee != client->client_id)
        head->refusal = FT_DEVICE_MISDELIVERED;
    else if (uploaded_later && since == client->round && has_unsent_values(client))
        head->refusal = FT_DEVICE_OLD_COPY;
    event->leads_to = head->round;
    if (mode == REPLAY)
        return receive_replay(client, head, since, in, event);
    if (mode == SUM)
        return receive_sum(client, head, since, counted, in, event);
    if (mode == INITIAL)
        return receive_initial(client, head, in, event);
    return receive_model(client, head, since, counted, in, event);
}

static int is_valid(const ft_device *client)
{
    return client && client->weights && client->upload && client->size &&
           client->size <= FT_DEVICE_MAX_SIZE &&
           (client->method == FT_DEVICE_SIGNSGD ? client->base && client->counts
                                                : client->residual != NULL) &&
           (client->method != FT_DEVICE_STC || (client->p_up > 0 && client->p_up <= 1));
}

int ft_device_receive(ft_device *client, const uint8_t *data, size_t length,
                      ft_device_event *event)
{
    struct head head;
    struct reader in;
    if (!is_valid(client) || !data || !event)
        return FT_DEVICE_BAD_ARGUMENT;
    event->since = client->round;
    event->round = client->round;
    event->leads_to = client->round;
    event->how = FT_DEVICE_NOTHING;
    event->counted = -1;
    event->invited = -1;
    const unsigned kinds = 1u << BROADCAST | 1u << CATCH_UP | 1u << COHORT_NOTICE;
    int code = open_message(client, data, length, kinds, &head, &in);
    if (code == FT_DEVICE_OK) {
        if (head.kind == BROADCAST)
            code = receive_broadcast(client, &head, &in, event);
        else if (head.kind == CATCH_UP)
            code = receive_catch_up(client, &head, &in, event);
        else
            code = receive_notice(client, &head, &in, event);
    }
    event->round = client->round;
    return code;
}

/* ---- Sending --------------------------------------------------------------------------------- */

/* What there is to send: a change of the weights, plus the residual. */
struct target {
    const ft_device_residual *residual; /* or NULL */
    const float *change;                /* or NULL */
    const float *weights;               /* subtracted from the change, or NULL */
};

/* Computed wherever it is needed: nothing is written before everything is known to be valid. */
static float value_at(const struct target *target, uint32_t i)
{
    if (!target->change)
        return get_residual(target->residual[i]);
    float value = target->change[i];
    if (target->weights)
        value -= target->weights[i];
    return target->residual ? value + get_residual(target->residual[i]) : value;
}

static int all_below(const struct target *target, uint32_t size, uint32_t limit)
{
    for (uint32_t i = 0; i < size; i++)
        if (magnitude(value_at(target, i)) >= limit)
            return 0;
    return 1;
}

/* k = max(floor(size * p), 1), with 0.29 of 100 counted as 29 although 0.29 * 100 < 29. */
static uint32_t count_kept(uint32_t size, double p)
{
    double kept = size * p * (1 + 1e-12);
    return kept < 1 ? 1 : kept >= size ? size : (uint32_t)kept;
}

/* Bytes of an upload's payload before the signs. */
static size_t ternary_header(uint32_t count)
{
    size_t length = 1 + 1 + 4; /* codec, at least one byte of the count, mu */
    for (; count >= 0x80; count >>= 7)
        length++;
    return length;
}

static size_t ternary_length(uint32_t count, unsigned width, uint32_t quotient_bits)
{
    return FRAME + HEAD + ternary_header(count) + (count + 7) / 8 +
           (size_t)(((uint64_t)count * width + 7) / 8) + (quotient_bits + 7) / 8;
}

static size_t longest_ternary_upload(uint32_t size, double p)
{
    const uint32_t k = count_kept(size, p);
    size_t longest = 0;
    /* Zeros are not sent: fewer than k entries have wider remainders. For each width, the most
     * entries that have it take most bytes. */
    for (unsigned width = golomb_width(k, size); width <= golomb_width(1, size); width++) {
        double most = width ? widest_density[width - 1] * size + 1 : size;
        uint32_t count = most < k ? (uint32_t)most : k;
        uint32_t quotient_bits = ((size - count) >> width) + count;
        size_t length = ternary_length(count, width, quotient_bits);
        if (length > longest)
            longest = length;
    }
    return longest;
}

/* Which entries to keep: magnitudes above `least`, and the first `ties` of exactly `least`. */
struct selection {
    uint32_t least;
    uint32_t ties;
    uint32_t count;
};

static int selects(struct selection *selection, float value)
{
    uint32_t bits = magnitude(value);
    if (bits == selection->least && selection->ties) {
        selection->ties--;
        return 1;
    }
    return bits > selection->least;
}

/* Find the k largest magnitudes that are not zero; ties go to the lowest positions. */
static struct selection select_largest(const struct target *target, uint32_t size, uint32_t k)
{
    /* Eight bits of the magnitudes at a time, from the top: which value have those of the k-th? */
    uint32_t counters[256];
    uint32_t known = 0;
    uint32_t rank = k;
    struct selection found = {0, 0, 0};
    for (int shift = 24; shift >= 0; shift -= 8) {
        memset(counters, 0, sizeof counters);
        for (uint32_t i = 0; i < size; i++) {
            uint32_t bits = magnitude(value_at(target, i));
            found.count += shift == 24 && bits && found.count < k;
            if (shift == 24 || bits >> shift >> 8 == known)
                counters[bits >> shift & 255]++;
        }
        uint32_t digit = 255;
        while (rank > counters[digit])
            rank -= counters[digit--];
        known = known << 8 | digit;
        if (rank == counters[digit]) {
            /* All of these are among the k largest: there is nothing left to tell apart. */
            found.least = known << shift;
            found.least -= found.least > 0;
            return found;
        }
    }
    found.least = known;
    found.ties = known ? rank : 0;
    return found;
}

static int send_ternary(ft_device *client, const struct target *target)
{
    const uint32_t size = client->size;
    if (!all_below(target, size, ABOVE_2_100))
        return FT_DEVICE_NOT_FINITE;
    const struct selection selection = select_largest(target, size, count_kept(size, client->p_up));
    const uint32_t count = selection.count;
    const unsigned width = golomb_width(count, size);

    struct selection rest = selection;
    double sum = 0;
    uint32_t quotient_bits = count;
    uint32_t next = 0; /* one more than the previous position */
    for (uint32_t i = 0; i < size; i++) {
        float value = value_at(target, i);
        if (!selects(&rest, value))
            continue;
        sum += value < 0 ? -value : value;
        quotient_bits += (i - next) >> width;
        next = i + 1;
    }
    const float mu = count ? (float)(sum / count) : 0;
    const size_t length = ternary_length(count, width, quotient_bits);
    if (magnitude(mu) >= ABOVE_2_64)
        return FT_DEVICE_NOT_FINITE;
    if (length > client->upload_room)
        return FT_DEVICE_NO_ROOM;

    /* The lengths of all parts are known: each bit is written to its place at once. */
    uint8_t *out = client->upload + 2 + HEAD;
    memset(client->upload, 0, length);
    *out++ = TERNARY_UPDATE;
    for (uint32_t left = count;; left >>= 7) {
        *out++ = (uint8_t)((left & 0x7f) | (left >= 0x80 ? 0x80 : 0));
        if (left < 0x80)
            break;
    }
    store_u32(out, float_bits(mu));
    uint8_t *signs = out + 4;
    uint8_t *remainders = signs + (count + 7) / 8;
    uint8_t *quotients = remainders + (size_t)(((uint64_t)count * width + 7) / 8);
    uint32_t remainder_at = 0;
    uint32_t quotient_at = 0;
    uint32_t entry = 0;
    rest = selection;
    next = 0;
    for (uint32_t i = 0; i < size; i++) {
        float value = value_at(target, i);
        int kept = selects(&rest, value);
        if (kept) {
            uint32_t gap = i - next;
            next = i + 1;
            for (unsigned bit = 0; bit < width; bit++, remainder_at++)
                if (gap >> bit & 1)
                    set_bit(remainders, remainder_at);
            for (uint32_t ones = gap >> width; ones; ones--)
                set_bit(quotients, quotient_at++);
            quotient_at++;
            if (value > 0)
                set_bit(signs, entry);
            entry++;
            value += value > 0 ? -mu : mu;
        }
        client->residual[i] = make_residual(value);
    }
    seal_upload(client, length);
    return FT_DEVICE_OK;
}

static size_t dense_length(uint32_t size)
{
    return FRAME + HEAD + 1 + 4 * (size_t)size;
}

static int send_dense(ft_device *client, const struct target *target)
{
    const size_t length = dense_length(client->size);
    uint8_t *out = client->upload + 2 + HEAD;
    if (!all_below(target, client->size, ABOVE_2_64))
        return FT_DEVICE_NOT_FINITE;
    if (length > client->upload_room)
        return FT_DEVICE_NO_ROOM;
    *out++ = DENSE;
    for (uint32_t i = 0; i < client->size; i++) {
        store_u32(out + 4 * (size_t)i, float_bits(value_at(target, i)));
        client->residual[i] = 0;
    }
    seal_upload(client, length);
    return FT_DEVICE_OK;
}

static size_t signs_length(uint32_t size)
{
    return FRAME + HEAD + 1 + 4 + (size + 7) / 8;
}

/* Output i of SplitMix64. */
static uint64_t random_number(uint64_t seed, uint64_t i)
{
    uint64_t z = seed + (i + 1) * UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static int send_signs(ft_device *client, const struct target *target)
{
    const size_t length = signs_length(client->size);
    uint8_t *out = client->upload + 2 + HEAD;
    /* A zero has no sign; always sending the same one would push such weights in one direction. */
    const uint64_t seed = random_number(random_number(client->seed, client->client_id),
                                        (uint64_t)client->round);
    if (!all_below(target, client->size, ABOVE_2_100))
        return FT_DEVICE_NOT_FINITE;
    if (length > client->upload_room)
        return FT_DEVICE_NO_ROOM;
    memset(client->upload, 0, length);
    *out++ = SIGNS;
    store_u32(out, float_bits(1.0f));
    for (uint32_t i = 0; i < client->size; i++) {
        float value = value_at(target, i);
        if (value > 0 || (value == 0 && random_number(seed, i) >> 63))
            set_bit(out + 4, i);
    }
    seal_upload(client, length);
    return FT_DEVICE_OK;
}

static int send(ft_device *client, const float *change, const float *weights)
{
    if (!is_valid(client) || (!change && client->method == FT_DEVICE_SIGNSGD))
        return FT_DEVICE_BAD_ARGUMENT;
    if (client->round < 0)
        return FT_DEVICE_NO_WEIGHTS;
    if (client->pending)
        return FT_DEVICE_ALREADY_SENT;
    if (client->round > UINT32_MAX)
        return FT_DEVICE_UNSUPPORTED; /* a message has 32 bits for it */
    struct target target = {client->residual, change, weights};
    if (FT_DEVICE_WITH_STC && client->method == FT_DEVICE_STC)
        return send_ternary(client, &target);
    if (FT_DEVICE_WITH_DENSE && client->method == FT_DEVICE_DENSE)
        return send_dense(client, &target);
    target.residual = NULL;
    if (FT_DEVICE_WITH_SIGNSGD && client->method == FT_DEVICE_SIGNSGD)
        return send_signs(client, &target);
    return FT_DEVICE_UNSUPPORTED;
}

int ft_device_send_delta(ft_device *client, const float *delta)
{
    return send(client, delta, NULL);
}

int ft_device_send(ft_device *client, const float *new_weights)
{
    if (!client || !new_weights)
        return FT_DEVICE_BAD_ARGUMENT;
    return send(client, new_weights, client->weights);
}

const uint8_t *ft_device_pending(const ft_device *client, size_t *length)
{
    *length = client->pending;
    return client->pending ? client->upload : NULL;
}

size_t ft_device_upload_room(int method, uint32_t size, double p_up)
{
    if (!size || size > FT_DEVICE_MAX_SIZE)
        return 0;
    if (FT_DEVICE_WITH_STC && method == FT_DEVICE_STC)
        return p_up > 0 && p_up <= 1 ? longest_ternary_upload(size, p_up) : 0;
    if (FT_DEVICE_WITH_DENSE && method == FT_DEVICE_DENSE)
        return dense_length(size);
    if (FT_DEVICE_WITH_SIGNSGD && method == FT_DEVICE_SIGNSGD)
        return signs_length(size);
    return 0;
}

/* ---- Beginning ------------------------------------------------------------------------------- */

int ft_device_join(ft_device *client)
{
    if (!is_valid(client))
        return FT_DEVICE_BAD_ARGUMENT;
    if (!ft_device_upload_room(client->method, client->size, client->p_up))
        return FT_DEVICE_UNSUPPORTED;
    if (client->residual)
        memset(client->residual, 0, client->size * sizeof *client->residual);
    memset(client->stamp, 0, STAMP);
    client->round = -1;
    client->pending = 0;
    client->sign_updates = 0;
    client->step = 0;
    return FT_DEVICE_OK;
}

int ft_device_start(ft_device *client, const char *federation, size_t length)
{
    if (!is_valid(client) || (!federation && length))
        return FT_DEVICE_BAD_ARGUMENT;
    const struct target weights = {NULL, client->weights, NULL};
    if (!all_below(&weights, client->size, ABOVE_2_100))
        return FT_DEVICE_NOT_FINITE;
    int code = ft_device_join(client);
    if (code != FT_DEVICE_OK)
        return code;
    uint8_t bytes[4];
    uint32_t crc = crc32_add(0, (const uint8_t *)federation, length);
    for (uint32_t i = 0; i < client->size; i++) {
        store_u32(bytes, float_bits(client->weights[i]));
        crc = crc32_add(crc, bytes, sizeof bytes);
    }
    store_u32(bytes, crc);
    memcpy(client->stamp, bytes, STAMP);
    client->round = 0;
    return FT_DEVICE_OK;
}

const char *ft_device_describe(int code)
{
    static const char *const texts[] = {
        "no error",
        "damaged message, or not a message of this format",
        "message of another format version",
        "the server's model has another layout",
        "the server uses another method",
        "message of another history: join again without weights",
        "missed rounds: ask the server for a catch-up",
        "message of a kind that this client does not support",
        "this round's upload has already been made",
        "no weights yet: receive a catch-up first",
        "a value is not finite or too large to be sent",
        "the upload buffer is too small",
        "invalid argument",
        "catch-up for another client",
        "the client was restored from an old copy: join again without weights",
    };
    const int last = (int)(sizeof texts / sizeof *texts) - 1;
    return code <= 0 && -code <= last ? texts[-code] : "unknown code";
}
