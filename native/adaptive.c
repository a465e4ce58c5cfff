/*
 * The adaptive codec of positions and small integers; fedtern.h says what each function does, and
 * docs/format.md defines the bytes.
 *
 * Encoding and decoding are one traversal: `code` writes a given bit or reads one, and everything
 * else is the same. Each public function is compiled twice, with a constant `decoding`.
 */

#include "fedtern.h"

#include <math.h>
#include <string.h>

#if defined(__GNUC__) || defined(__clang__)
#define FT_INLINE static inline __attribute__((always_inline))
#else
#define FT_INLINE static inline
#endif

/* Probabilities are of 65,536. Neither bit is ever thought impossible. */
#define LEAST 32
#define MOST (65536 - LEAST)
#define HALF 32768

/* ---- Range coder ------------------------------------------------------------------------------ */

struct coder {
    uint64_t low;
    uint32_t range;
    uint32_t code;  /* decoding: the next bytes, relative to `low` */
    uint8_t *bytes;
    int64_t size;   /* decoding: length of the stream; encoding: room */
    int64_t at;     /* next byte */
    int64_t pending; /* encoding: bytes of 255 that a carry could still change */
    uint8_t cache;   /* encoding: the byte before the pending ones */
    int started;     /* encoding: whether `cache` is a byte of the stream */
    int failed;
};

static void write_byte(struct coder *coder, uint8_t byte)
{
    /* Zeros at the end are not a part of the stream, so they need no room. */
    if (coder->at < coder->size)
        coder->bytes[coder->at] = byte;
    else if (byte)
        coder->failed = 1;
    coder->at++;
}

/* Move the top byte of `low` to the stream. A byte of 255 waits, because a carry may follow. */
static void shift_low(struct coder *coder)
{
    if (coder->low < 0xff000000u || coder->low > 0xffffffffu) {
        uint8_t carry = (uint8_t)(coder->low >> 32);
        if (coder->started)
            write_byte(coder, (uint8_t)(coder->cache + carry));
        for (; coder->pending > 0; coder->pending--)
            write_byte(coder, (uint8_t)(0xff + carry));
        coder->started = 1;
        coder->cache = (uint8_t)(coder->low >> 24);
    } else {
        coder->pending++;
    }
    coder->low = (coder->low & 0x00ffffffu) << 8;
}

static uint32_t next_byte(struct coder *coder)
{
    /* The encoder omits zeros at the end. */
    uint32_t byte = coder->at < coder->size ? coder->bytes[coder->at] : 0;
    coder->at++;
    return byte;
}

static void start(struct coder *coder, int decoding, uint8_t *bytes, int64_t size)
{
    coder->low = 0;
    coder->range = 0xffffffffu;
    coder->code = 0;
    coder->bytes = bytes;
    coder->size = size;
    coder->at = 0;
    coder->pending = 0;
    coder->cache = 0;
    coder->started = 0;
    coder->failed = 0;
    for (int i = 0; decoding && i < 4; i++)
        coder->code = coder->code << 8 | next_byte(coder);
}

/* Code a bit that is 1 with a probability of one / 65,536. */
FT_INLINE int code(struct coder *coder, const int decoding, int bit, uint32_t one)
{
    uint32_t bound = (coder->range >> 16) * one;
    if (decoding)
        bit = coder->code < bound;
    if (bit) {
        coder->range = bound;
    } else {
        if (decoding)
            coder->code -= bound;
        else
            coder->low += bound;
        coder->range -= bound;
    }
    while (coder->range < 1u << 24) {
        coder->range <<= 8;
        if (decoding)
            coder->code = coder->code << 8 | next_byte(coder);
        else
            shift_low(coder);
    }
    return bit;
}

/* End a stream; return its length, or -1 if the room was too small or the stream is not valid. */
static int64_t finish(struct coder *coder, int decoding)
{
    if (decoding) {
        int ends_in_zero = coder->size > 0 && coder->bytes[coder->size - 1] == 0;
        return coder->failed || coder->at < coder->size || ends_in_zero ? -1 : coder->size;
    }
    /* Of all numbers in [low, low + range), take the one with the most zeros at its end. */
    uint64_t last = coder->low + coder->range - 1;
    for (int bits = 32; bits >= 0; bits--) {
        uint64_t number = last >> bits << bits;
        if (number >= coder->low) {
            coder->low = number;
            break;
        }
    }
    for (int i = 0; i < 5; i++)
        shift_low(coder);
    if (coder->failed)
        return -1;
    int64_t length = coder->at < coder->size ? coder->at : coder->size;
    while (length > 0 && coder->bytes[length - 1] == 0)
        length--;
    return length;
}

/* ---- Adaptive bits and numbers ---------------------------------------------------------------- */

/* The probability of a 1, and how many bits it has seen (at most SLOWEST). */
struct bit_model {
    uint16_t one;
    uint16_t seen;
};

#define SLOWEST 30

FT_INLINE int code_adaptive(struct coder *coder, const int decoding, struct bit_model *model,
                            int bit)
{
    /* 65,536 / (seen + 2): the first bits count more than later ones. */
    static const uint16_t rates[SLOWEST + 1] = {
        32768, 21845, 16384, 13107, 10922, 9362, 8192, 7281, 6553, 5957, 5461,
        5041,  4681,  4369,  4096,  3855,  3640, 3449, 3276, 3120, 2978, 2849,
        2730,  2621,  2520,  2427,  2340,  2259, 2184, 2114, 2048,
    };
    uint32_t one = model->one;
    uint32_t rate = rates[model->seen];
    bit = code(coder, decoding, bit, one);
    one = bit ? one + ((65536 - one) * rate >> 16) : one - (one * rate >> 16);
    model->one = (uint16_t)(one < LEAST ? LEAST : one > MOST ? MOST : one);
    model->seen += model->seen < SLOWEST;
    return bit;
}

/* Models of a number: of each bit of its length in unary, and of the bit after the leading one. */
struct number_model {
    struct bit_model length[32];
    struct bit_model second[32];
};

/* Code number + 1 in Elias's gamma code with adaptive bits; number is below 2^31. */
FT_INLINE uint32_t code_number(struct coder *coder, const int decoding, struct number_model *model,
                               uint32_t number)
{
    uint32_t value = number + 1;
    int length = 0;
    for (;; length++) {
        if (length == 31) {
            coder->failed = 1;
            return 0;
        }
        int more = decoding ? 0 : value >> length > 1;
        if (!code_adaptive(coder, decoding, &model->length[length], more))
            break;
    }
    uint32_t read = 1;
    for (int i = length - 1; i >= 0; i--) {
        int bit = decoding ? 0 : (int)(value >> i & 1);
        bit = i == length - 1 ? code_adaptive(coder, decoding, &model->second[length], bit)
                              : code(coder, decoding, bit, HALF);
        read = read << 1 | (uint32_t)bit;
    }
    return (decoding ? read : value) - 1;
}

/* ---- Positions -------------------------------------------------------------------------------- */

#define ROW_CLASSES 12
#define ROW_UNARY 16
#define SPLIT_CLASSES 8
#define UNIFORM 15
#define BINOMIAL 16 /* counts below it are split by a binomial distribution */
#define WIDEST 16   /* levels of the tree of columns */
#define COUNT_UNIT 64

struct position_models {
    struct number_model tensor_counts;
    struct bit_model learning[15];
    struct bit_model rows[ROW_CLASSES][ROW_UNARY];
    struct number_model long_rows;
    struct bit_model split_differs[SPLIT_CLASSES];
    struct number_model split_distance[SPLIT_CLASSES];
};

static void reset_bits(struct bit_model *models, size_t bytes)
{
    for (size_t i = 0; i < bytes / sizeof *models; i++) {
        models[i].one = HALF;
        models[i].seen = 0;
    }
}

/* A tensor as a matrix, while its positions are coded. */
struct matrix {
    int64_t rows;
    int64_t columns;
    int levels;        /* the tree of columns has 2^levels leaves */
    uint32_t prior;    /* weight of a column that was not seen yet; 64 is that of one entry */
    int learns;        /* whether the tree counts entries */
    uint32_t *counts;  /* entries seen in each node; the children of node i are 2i and 2i + 1 */
    int64_t start;     /* position of the current row's first column */
    int64_t *positions;
    int64_t done;      /* positions coded so far */
};

static int bit_length(uint64_t number)
{
#if defined(__GNUC__) || defined(__clang__)
    return number ? 64 - __builtin_clzll(number) : 0;
#else
    int bits = 0;
    for (; number; number >>= 1)
        bits++;
    return bits;
#endif
}

/* The number of columns in a node that begins at `first` and has room for `span`. */
FT_INLINE int64_t columns_in(const struct matrix *matrix, int64_t first, int64_t span)
{
    int64_t left = matrix->columns - first;
    return left < 0 ? 0 : left < span ? left : span;
}

/* How likely an entry of a node is in its left half, of 65,536. */
FT_INLINE uint32_t left_probability(const struct matrix *matrix, int64_t node, int64_t left_size,
                                    int64_t right_size)
{
    uint64_t left = (uint64_t)left_size * matrix->prior;
    uint64_t right = (uint64_t)right_size * matrix->prior;
    if (matrix->learns) {
        left += (uint64_t)matrix->counts[2 * node] * COUNT_UNIT;
        right += (uint64_t)matrix->counts[2 * node + 1] * COUNT_UNIT;
    }
    uint64_t both = left + right;
    int excess = bit_length(both) - 16;
    if (excess > 0) {
        left >>= excess;
        both >>= excess;
    }
    uint32_t probability = ((uint32_t)left << 16) / (uint32_t)both;
    return probability < LEAST ? LEAST : probability > MOST ? MOST : probability;
}

/* Code how many of `count` entries are in the left half, for 2 <= count < BINOMIAL. */
FT_INLINE int64_t code_binomial(struct coder *coder, const int decoding, int64_t count,
                                uint32_t left, int64_t in_left)
{
    /* Count on the less likely side, which takes fewer decisions. */
    int mirrored = left > HALF;
    uint32_t hit = mirrored ? 65536 - left : left;
    uint32_t miss = 65536 - hit;
    int64_t wanted = mirrored ? count - in_left : in_left;
    uint64_t mass = (uint64_t)1 << 30; /* of this outcome; all of them together have 2^30 */
    for (int64_t i = 0; i < count; i++)
        mass = mass * miss >> 16;
    uint64_t rest = (uint64_t)1 << 30;
    int64_t outcome = 0;
    for (; outcome < count; outcome++) {
        uint32_t here = rest ? (uint32_t)((mass << 16) / rest) : HALF;
        here = here < LEAST ? LEAST : here > MOST ? MOST : here;
        if (code(coder, decoding, outcome == wanted, here))
            break;
        rest = rest > mass ? rest - mass : 0;
        mass = mass * (uint64_t)(count - outcome) * hit / ((uint64_t)(outcome + 1) * miss);
    }
    return mirrored ? count - outcome : outcome;
}

/* Code how many of many entries are in the left half: the distance from their expected number. */
FT_INLINE int64_t code_many(struct coder *coder, const int decoding,
                            struct position_models *models, int64_t count, uint32_t left,
                            int64_t in_left)
{
    int class = bit_length((uint64_t)count) - 5;
    class = class < SPLIT_CLASSES ? class : SPLIT_CLASSES - 1;
    int64_t expected = (int64_t)(((uint64_t)count * left + HALF) >> 16);
    int64_t distance = decoding ? 0 : in_left - expected;
    if (!code_adaptive(coder, decoding, &models->split_differs[class], distance != 0))
        return expected;
    int more = code(coder, decoding, distance > 0, HALF);
    int64_t size = decoding ? 0 : distance > 0 ? distance : -distance;
    size = 1 + (int64_t)code_number(coder, decoding, &models->split_distance[class],
                                    (uint32_t)(decoding ? 0 : size - 1));
    return more ? expected + size : expected - size;
}

/* Code the columns of the `count` entries in a node at `level`, whose first column is `first`. */
static void code_columns(struct coder *coder, const int decoding, struct position_models *models,
                         struct matrix *matrix, int level, int64_t node, int64_t first,
                         int64_t count);

FT_INLINE void code_columns_inline(struct coder *coder, const int decoding,
                                   struct position_models *models, struct matrix *matrix,
                                   int level, int64_t node, int64_t first, int64_t count)
{
    while (level < matrix->levels) {
        int64_t span = (int64_t)1 << (matrix->levels - level - 1);
        int64_t left_size = columns_in(matrix, first, span);
        int64_t right_size = columns_in(matrix, first + span, span);
        int64_t fewest = count > right_size ? count - right_size : 0;
        int64_t most = count < left_size ? count : left_size;
        int64_t in_left = fewest;
        if (fewest < most) {
            uint32_t left = left_probability(matrix, node, left_size, right_size);
            if (!decoding) {
                const int64_t *next = matrix->positions + matrix->done;
                int64_t middle = matrix->start + first + span;
                for (in_left = 0; in_left < count && next[in_left] < middle; in_left++)
                    ;
            }
            if (count == 1)
                in_left = code(coder, decoding, (int)in_left, left);
            else if (count < BINOMIAL)
                in_left = code_binomial(coder, decoding, count, left, in_left);
            else
                in_left = code_many(coder, decoding, models, count, left, in_left);
            if (in_left < fewest || in_left > most) {
                coder->failed = 1;
                return;
            }
        }
        if (matrix->learns) {
            matrix->counts[2 * node] += (uint32_t)in_left;
            matrix->counts[2 * node + 1] += (uint32_t)(count - in_left);
        }
        if (in_left == 0) {
            node = 2 * node + 1;
            first += span;
        } else if (in_left == count) {
            node = 2 * node;
        } else {
            code_columns(coder, decoding, models, matrix, level + 1, 2 * node, first, in_left);
            if (coder->failed)
                return;
            node = 2 * node + 1;
            first += span;
            count -= in_left;
        }
        level++;
    }
    if (decoding)
        matrix->positions[matrix->done] = matrix->start + first;
    matrix->done++;
}

static void encode_columns(struct coder *coder, struct position_models *models,
                           struct matrix *matrix, int level, int64_t node, int64_t first,
                           int64_t count)
{
    code_columns_inline(coder, 0, models, matrix, level, node, first, count);
}

static void decode_columns(struct coder *coder, struct position_models *models,
                           struct matrix *matrix, int level, int64_t node, int64_t first,
                           int64_t count)
{
    code_columns_inline(coder, 1, models, matrix, level, node, first, count);
}

static void code_columns(struct coder *coder, const int decoding, struct position_models *models,
                         struct matrix *matrix, int level, int64_t node, int64_t first,
                         int64_t count)
{
    (decoding ? decode_columns : encode_columns)(coder, models, matrix, level, node, first, count);
}

/* Code how many entries a row has, given how many are left for how many rows. */
FT_INLINE int64_t code_row(struct coder *coder, const int decoding, struct position_models *models,
                           int64_t left, int64_t rows, int64_t columns, int64_t count)
{
    int class = bit_length((uint64_t)left * 64 / (uint64_t)rows) / 2;
    class = class < ROW_CLASSES ? class : ROW_CLASSES - 1;
    int64_t most = left < columns ? left : columns;
    int64_t found = 0;
    for (; found < most && found < ROW_UNARY; found++)
        if (!code_adaptive(coder, decoding, &models->rows[class][found], count > found))
            return found;
    if (found < most)
        found += code_number(coder, decoding, &models->long_rows,
                             (uint32_t)(decoding ? 0 : count - ROW_UNARY));
    if (found > most)
        coder->failed = 1;
    return found;
}

/*
 * The number from 0 to 14 that says how unevenly entries fall on columns, or UNIFORM: entries that
 * share a column, against the number expected if all columns were equally likely.
 */
static int choose_learning(const int64_t *positions, int64_t count, int64_t first, int64_t columns,
                           uint32_t *scratch)
{
    double same = 0.0;
    memset(scratch, 0, (size_t)columns * sizeof *scratch);
    for (int64_t i = 0; i < count; i++)
        same += 2.0 * scratch[(positions[i] - first) % columns]++;
    double pairs = (double)count * (double)(count - 1);
    double excess = (double)columns * same - pairs;
    if (excess <= 0.0)
        return UNIFORM;
    if (pairs <= same)
        return 0;
    int exponent;
    frexp((pairs - same) / excess, &exponent);
    int learning = exponent + 4;
    return learning < 0 ? 0 : learning > 14 ? UNIFORM : learning;
}

FT_INLINE int code_learning(struct coder *coder, const int decoding,
                            struct position_models *models, int learning)
{
    int node = 1;
    for (int i = 3; i >= 0; i--)
        node = node << 1 | code_adaptive(coder, decoding, &models->learning[node - 1],
                                         learning >> i & 1);
    return node - 16;
}

/* Code the `count` entries of one tensor, from positions[done] on. */
FT_INLINE void code_tensor(struct coder *coder, const int decoding,
                           struct position_models *models, struct matrix *matrix, int64_t first,
                           int64_t size, int64_t rows, int64_t count)
{
    int64_t columns = rows > 0 ? size / rows : 0;
    int is_matrix = rows > 1 && columns > 1 && columns <= (int64_t)1 << WIDEST;
    if (!is_matrix) {
        /* A vector becomes a matrix with about one entry per row. */
        int level = 0;
        while (level < WIDEST && count << level < size)
            level++;
        columns = (int64_t)1 << level;
        rows = (size + columns - 1) >> level;
    }
    int learning = UNIFORM;
    if (is_matrix) {
        if (!decoding)
            learning = choose_learning(matrix->positions + matrix->done, count, first, columns,
                                       matrix->counts);
        learning = code_learning(coder, decoding, models, learning);
    }
    matrix->rows = rows;
    matrix->columns = columns;
    matrix->levels = bit_length((uint64_t)(columns - 1));
    matrix->learns = learning != UNIFORM;
    matrix->prior = matrix->learns ? 2u << learning : 1u;
    if (matrix->learns)
        memset(matrix->counts, 0, ((size_t)2 << matrix->levels) * sizeof *matrix->counts);
    const int64_t end = first + size;
    int64_t left = count;
    for (int64_t row = 0; left > 0; row++) {
        matrix->start = first + row * columns;
        /* The last row of a vector may be shorter. */
        if (!is_matrix && end - matrix->start < columns)
            matrix->columns = end - matrix->start;
        int64_t here = left;
        if (!decoding) {
            const int64_t *next = matrix->positions + matrix->done;
            for (here = 0; here < left && next[here] < matrix->start + columns; here++)
                ;
        }
        if (row < rows - 1)
            here = code_row(coder, decoding, models, left, rows - row, matrix->columns, here);
        else
            here = left;
        if (coder->failed || here > matrix->columns) {
            coder->failed = 1;
            return;
        }
        if (here) {
            code_columns(coder, decoding, models, matrix, 0, 1, 0, here);
            if (coder->failed)
                return;
        }
        left -= here;
    }
}

/* Code magnitudes from 1 to `largest`. */
#define MAGNITUDE_UNARY 16

FT_INLINE void code_magnitudes(struct coder *coder, const int decoding, int32_t *magnitudes,
                               int64_t count, int32_t largest)
{
    struct bit_model more[MAGNITUDE_UNARY];
    struct number_model large;
    reset_bits(more, sizeof more);
    reset_bits(large.length, sizeof large);
    for (int64_t i = 0; i < count && !coder->failed; i++) {
        int32_t above = 0;
        int32_t wanted = decoding ? 0 : magnitudes[i] - 1;
        int ended = 0;
        while (above < largest - 1 && above < MAGNITUDE_UNARY && !ended) {
            ended = !code_adaptive(coder, decoding, &more[above], wanted > above);
            above += !ended;
        }
        if (!ended && above < largest - 1) {
            uint32_t rest = code_number(coder, decoding, &large, (uint32_t)(wanted - above));
            if (rest > (uint32_t)(largest - 1 - above)) {
                coder->failed = 1;
                return;
            }
            above += (int32_t)rest;
        }
        if (decoding)
            magnitudes[i] = above + 1;
    }
}

FT_INLINE int64_t code_entries(const int decoding, int64_t *positions, int32_t *magnitudes,
                               int64_t count, int32_t largest, const int64_t *ends,
                               const int64_t *rows, int64_t tensors, uint32_t *scratch,
                               uint8_t *bytes, int64_t size)
{
    struct coder coder;
    struct position_models models;
    struct matrix matrix;
    matrix.counts = scratch;
    matrix.positions = positions;
    matrix.done = 0;
    start(&coder, decoding, bytes, size);
    reset_bits(models.tensor_counts.length, sizeof models);
    int64_t first = 0;
    for (int64_t tensor = 0; tensor < tensors && matrix.done < count; tensor++) {
        int64_t left = count - matrix.done;
        int64_t tensor_size = ends[tensor] - first;
        int64_t here = left;
        if (!decoding) {
            const int64_t *next = positions + matrix.done;
            for (here = 0; here < left && next[here] < ends[tensor]; here++)
                ;
        }
        if (tensor < tensors - 1)
            here = (int64_t)code_number(&coder, decoding, &models.tensor_counts, (uint32_t)here);
        if (coder.failed || here > left || here > tensor_size)
            return -1;
        if (here)
            code_tensor(&coder, decoding, &models, &matrix, first, tensor_size, rows[tensor], here);
        if (coder.failed)
            return -1;
        first = ends[tensor];
    }
    if (matrix.done < count)
        return -1;
    if (largest > 1)
        code_magnitudes(&coder, decoding, magnitudes, count, largest);
    return finish(&coder, decoding);
}

int64_t ft_adaptive_scratch(const int64_t *ends, const int64_t *rows, int64_t tensors)
{
    int64_t most = 1;
    int64_t first = 0;
    for (int64_t tensor = 0; tensor < tensors; tensor++) {
        int64_t columns = rows[tensor] > 0 ? (ends[tensor] - first) / rows[tensor] : 0;
        if (rows[tensor] > 1 && columns > 1 && columns <= (int64_t)1 << WIDEST) {
            int64_t nodes = (int64_t)2 << bit_length((uint64_t)(columns - 1));
            most = nodes > most ? nodes : most;
        }
        first = ends[tensor];
    }
    return most;
}

int64_t ft_encode_adaptive(const int64_t *positions, const int32_t *magnitudes, int64_t count,
                           int32_t largest, const int64_t *ends, const int64_t *rows,
                           int64_t tensors, uint32_t *scratch, uint8_t *out, int64_t room)
{
    return code_entries(0, (int64_t *)(uintptr_t)positions, (int32_t *)(uintptr_t)magnitudes,
                        count, largest, ends, rows, tensors, scratch, out, room);
}

int64_t ft_decode_adaptive(const uint8_t *data, int64_t size, int64_t *positions,
                           int32_t *magnitudes, int64_t count, int32_t largest,
                           const int64_t *ends, const int64_t *rows, int64_t tensors,
                           uint32_t *scratch)
{
    return code_entries(1, positions, magnitudes, count, largest, ends, rows, tensors, scratch,
                        (uint8_t *)(uintptr_t)data, size);
}
