/* The kernels of fedtern.h. Comments here say why; the header says what. */

#include "fedtern.h"

#include <math.h>
#include <string.h>

/* x86 has vector instructions that are worth a dispatch at run time; others compile the portable
 * loops, which compilers vectorise as far as they can. */
#if (defined(__x86_64__) || defined(_M_X64)) && (defined(__GNUC__) || defined(__clang__))
#define FT_X86 1
#include <immintrin.h>
#endif

#define MAGNITUDE 0x7fffffff

static int32_t magnitude_bits(float value)
{
    int32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits & MAGNITUDE;
}

static int trailing_zeros(uint64_t word)
{
#if defined(__GNUC__) || defined(__clang__)
    return word ? __builtin_ctzll(word) : 64;
#else
    int count = 0;
    if (!word)
        return 64;
    while (!(word & 1)) {
        word >>= 1;
        count++;
    }
    return count;
#endif
}

/* Start to load an address into the cache, where the compiler has a name for that. */
static void prefetch(const void *address)
{
#if defined(__GNUC__) || defined(__clang__)
    __builtin_prefetch(address);
#else
    (void)address;
#endif
}

static void store_word(uint8_t *out, uint64_t word, int bytes)
{
    for (int j = 0; j < bytes; j++)
        out[j] = (uint8_t)(word >> (8 * j));
}

/* A constant number of bytes: compilers turn this into one store on little-endian machines. */
static void store_eight(uint8_t *out, uint64_t word)
{
    store_word(out, word, 8);
}

static uint64_t load_eight(const uint8_t *data)
{
    uint64_t word = 0;
    for (int j = 0; j < 8; j++)
        word |= (uint64_t)data[j] << (8 * j);
    return word;
}

/* Read `width` bits, below 64 unless `at` is a multiple of 8. Reads FT_SPARE bytes ahead. */
static uint64_t get_bits(const uint8_t *data, int64_t at, int width)
{
    uint64_t word = load_eight(data + (at >> 3)) >> (at & 7);
    return width == 64 ? word : word & (((uint64_t)1 << width) - 1);
}

/* ---- Selection ------------------------------------------------------------------------------ */

#if defined(__GNUC__) || defined(__clang__)
#define FT_INLINE static inline __attribute__((always_inline))
#else
#define FT_INLINE static inline
#endif

/*
 * Bit i of the result: the magnitude of x[i] reaches the threshold, for 64 values. y is added to x
 * first unless it is NULL. Every value of a model goes through this function. Each instruction set
 * has a version of it, which is inlined into a loop of its own: a call per block costs a fifth of
 * the time.
 */
typedef uint64_t (*reaching_function)(float *x, const float *y, int32_t threshold);

FT_INLINE uint64_t reaching_portable(float *x, const float *y, int32_t threshold)
{
    uint64_t word = 0;
    if (y)
        for (int i = 0; i < FT_BLOCK; i++)
            x[i] += y[i];
    for (int i = 0; i < FT_BLOCK; i++)
        word |= (uint64_t)(magnitude_bits(x[i]) >= threshold) << i;
    return word;
}

#ifdef FT_X86
__attribute__((target("avx2"))) FT_INLINE uint64_t reaching_avx2(float *x, const float *y,
                                                                 int32_t threshold)
{
    const __m256i magnitude = _mm256_set1_epi32(MAGNITUDE);
    const __m256i below = _mm256_set1_epi32(threshold - 1);
    uint64_t word = 0;
    for (int i = 0; i < FT_BLOCK; i += 8) {
        __m256 values = _mm256_loadu_ps(x + i);
        if (y) {
            values = _mm256_add_ps(values, _mm256_loadu_ps(y + i));
            _mm256_storeu_ps(x + i, values);
        }
        __m256i bits = _mm256_and_si256(_mm256_castps_si256(values), magnitude);
        __m256i hits = _mm256_cmpgt_epi32(bits, below);
        word |= (uint64_t)(uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(hits)) << i;
    }
    return word;
}

__attribute__((target("avx512f"))) FT_INLINE uint64_t reaching_avx512(float *x, const float *y,
                                                                      int32_t threshold)
{
    const __m512i magnitude = _mm512_set1_epi32(MAGNITUDE);
    const __m512i least = _mm512_set1_epi32(threshold);
    uint64_t word = 0;
    for (int i = 0; i < FT_BLOCK; i += 16) {
        __m512 values = _mm512_loadu_ps(x + i);
        if (y) {
            values = _mm512_add_ps(values, _mm512_loadu_ps(y + i));
            _mm512_storeu_ps(x + i, values);
        }
        __m512i bits = _mm512_and_epi32(_mm512_castps_si512(values), magnitude);
        word |= (uint64_t)_mm512_cmpge_epi32_mask(bits, least) << i;
    }
    return word;
}
#endif

/* The candidates that a selection has collected so far. */
struct candidates {
    int64_t *positions;
    float *values;
    int64_t count;
    int64_t room;
};

static void collect(struct candidates *found, int64_t position, float value)
{
    found->positions[found->count] = position;
    found->values[found->count] = value;
    found->count++;
}

/*
 * Load the block that is 4 KiB ahead into the cache. Processors load ahead by themselves, but most
 * stop at the end of each page of 4 KiB. An address behind the end of the vector does no harm.
 */
static void prefetch_block(const float *block)
{
    const uintptr_t ahead = (uintptr_t)block + 4096;
    for (uintptr_t i = 0; i < FT_BLOCK * sizeof *block; i += 64)
        prefetch((const void *)(ahead + i));
}

/* Values between two collections of candidates: 16 KiB, so that they are still in the cache. */
#define FT_CHUNK (64 * FT_BLOCK)

/*
 * Collect from whole blocks, from `at` on, until there might be no room for another block; return
 * the next position. `reaching` is a constant in every call, so that compilers inline it.
 */
FT_INLINE int64_t scan_blocks(float *x, const float *y, int64_t size, int64_t at,
                              int32_t threshold, struct candidates *found,
                              reaching_function reaching)
{
    const int64_t full = found->room - FT_BLOCK;
    int64_t *positions = found->positions;
    int64_t count = found->count;
    while (at + FT_BLOCK <= size && count <= full) {
        const int64_t before = count;
        const int64_t stop = size - at < FT_CHUNK ? size : at + FT_CHUNK;
        while (at + FT_BLOCK <= stop && count <= full) {
            prefetch_block(x + at);
            if (y)
                prefetch_block(y + at);
            uint64_t hits = reaching(x + at, y ? y + at : NULL, threshold);
            /* Two are always written, and kept if there are as many: few branches mispredict. */
            for (int i = 0; i < 2; i++) {
                positions[count] = at + (trailing_zeros(hits) & (FT_BLOCK - 1));
                count += hits != 0;
                hits &= hits - 1;
            }
            while (hits) {
                positions[count] = at + trailing_zeros(hits);
                count++;
                hits &= hits - 1;
            }
            at += FT_BLOCK;
        }
        /* In a loop of their own: a value that was just stored as part of a vector is slow to load. */
        for (int64_t i = before; i < count; i++)
            found->values[i] = x[positions[i]];
    }
    found->count = count;
    return at;
}

typedef int64_t (*scan_function)(float *x, const float *y, int64_t size, int64_t at,
                                 int32_t threshold, struct candidates *found);

/* One version with and one without a vector to add: compilers then drop the test from the loop. */
#define FT_SCAN(name, target, reaching)                                                           \
    target static int64_t name(float *x, const float *y, int64_t size, int64_t at,                \
                               int32_t threshold, struct candidates *found)                       \
    {                                                                                             \
        if (y)                                                                                    \
            return scan_blocks(x, y, size, at, threshold, found, reaching);                       \
        return scan_blocks(x, NULL, size, at, threshold, found, reaching);                        \
    }

FT_SCAN(scan_portable, , reaching_portable)
#ifdef FT_X86
/* With BMI, finding and clearing the lowest hit takes one instruction each. */
FT_SCAN(scan_avx2, __attribute__((target("avx2,bmi"))), reaching_avx2)
FT_SCAN(scan_avx512, __attribute__((target("avx512f,bmi"))), reaching_avx512)
#endif

static scan_function best_scan(void)
{
#ifdef FT_X86
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("bmi"))
        return scan_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi"))
        return scan_avx2;
#endif
    return scan_portable;
}

const char *ft_instruction_set(void)
{
    scan_function best = best_scan();
#ifdef FT_X86
    if (best == scan_avx512)
        return "avx512";
    if (best == scan_avx2)
        return "avx2";
#endif
    return best == scan_portable ? "portable" : "unknown";
}

/* Collect from single values. */
static int64_t scan_values(float *x, const float *y, int64_t end, int64_t at, int32_t threshold,
                           struct candidates *found)
{
    for (; at < end; at++) {
        if (y)
            x[at] += y[at];
        if (magnitude_bits(x[at]) >= threshold)
            collect(found, at, x[at]);
    }
    return at;
}

/* Collect from `at` on until there might be no room for another block; return the next position. */
static int64_t scan(float *x, const float *y, int64_t size, int64_t at, int32_t threshold,
                    struct candidates *found, scan_function scan_whole_blocks)
{
    const int64_t full = found->room - FT_BLOCK;
    /* Stores that cross a cache line take twice the time, so the blocks start at a line of 64 bytes
     * (in units of values, as vectors are aligned to their values). */
    int64_t behind = (int64_t)(((uintptr_t)(x + at) / sizeof *x) % 16);
    if (behind && size - at >= FT_BLOCK && found->count <= full)
        at = scan_values(x, y, at + 16 - behind, at, threshold, found);
    at = scan_whole_blocks(x, y, size, at, threshold, found);
    if (found->count <= full)
        at = scan_values(x, y, size, at, threshold, found);
    return at;
}

/* Move the candidates of at least a magnitude to the front, in their order. */
static void keep_reaching(struct candidates *found, int32_t least)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < found->count; i++) {
        int64_t position = found->positions[i];
        float value = found->values[i];
        found->positions[kept] = position;
        found->values[kept] = value;
        kept += magnitude_bits(value) >= least;
    }
    found->count = kept;
}

/* Drop candidates of a magnitude, the last ones first, until k are left. */
static void drop_ties(struct candidates *found, int32_t magnitude, int64_t k)
{
    int64_t ties = k;
    int64_t kept = 0;
    for (int64_t i = 0; i < found->count; i++)
        ties -= magnitude_bits(found->values[i]) != magnitude;
    for (int64_t i = 0; i < found->count; i++) {
        int tie = magnitude_bits(found->values[i]) == magnitude;
        found->positions[kept] = found->positions[i];
        found->values[kept] = found->values[i];
        kept += !tie || ties > 0;
        ties -= tie;
    }
    found->count = kept;
}

/*
 * Keep the k largest of more than k candidates, none of which is below `low`; return a magnitude
 * that all of them reach.
 *
 * Each pass divides the interval that holds the k-th largest magnitude into at most 2,048 parts,
 * counts the candidates in each, and goes on with the part of the k-th. In the first pass, all
 * parts but the last are narrow and close to `low`, where the k-th is expected: two passes mostly
 * suffice.
 */
static int32_t keep_largest(struct candidates *found, int64_t k, int32_t low, int64_t *counters)
{
    const float *values = found->values;
    const int64_t count = found->count;
    int64_t surplus = count - k; /* candidates of at least `low`, in addition to k */
    int32_t high = MAGNITUDE;
    int shift = 10; /* 2,048 parts are a quarter of the magnitudes from one power of two to the next */
    while (surplus && low < high) {
        const uint32_t span = (uint32_t)(high - low);
        const uint32_t last =
            span >> shift < FT_SELECT_SCRATCH ? span >> shift : FT_SELECT_SCRATCH - 1;
        memset(counters, 0, (last + 1) * sizeof *counters);
        for (int64_t i = 0; i < count; i++) {
            const uint32_t above = (uint32_t)(magnitude_bits(values[i]) - low);
            if (above <= span)
                counters[above >> shift < last ? above >> shift : last]++;
        }
        uint32_t part = 0;
        while (surplus >= counters[part])
            surplus -= counters[part++];
        low += (int32_t)(part << shift);
        if (part < last)
            high = low + (int32_t)(((uint32_t)1 << shift) - 1);
        shift = 0;
        while ((uint32_t)(high - low) >> shift >= FT_SELECT_SCRATCH)
            shift++;
    }
    keep_reaching(found, low);
    if (surplus) /* several are equal to the k-th */
        drop_ties(found, low, k);
    return low;
}

int64_t ft_select(float *x, const float *y, int64_t size, int64_t k, int32_t threshold,
                  int64_t *positions, float *values, int64_t room, int64_t *scratch)
{
    struct candidates found = {positions, values, 0, room};
    scan_function scan_whole_blocks = best_scan();
    int64_t at = 0;
    int32_t least = threshold; /* no candidate is smaller */
    if (k < 1) {
        for (int64_t i = 0; y && i < size; i++)
            x[i] += y[i];
        return 0;
    }
    for (;;) {
        at = scan(x, y, size, at, threshold, &found, scan_whole_blocks);
        if (found.count > k) {
            least = keep_largest(&found, k, least, scratch);
            /* An equal magnitude further on would lose to the ones already found. */
            threshold = least < MAGNITUDE ? least + 1 : MAGNITUDE;
        }
        if (at == size)
            return found.count;
    }
}

int64_t ft_first_reaching(const float *x, int64_t size, int32_t threshold)
{
    /* Room for one block: the scan stops after the first block with a hit. */
    int64_t positions[FT_BLOCK];
    float values[FT_BLOCK];
    struct candidates found = {positions, values, 0, FT_BLOCK};
    /* Without a vector to add, nothing is written to x. */
    scan((float *)(uintptr_t)x, NULL, size, 0, threshold, &found, best_scan());
    return found.count ? positions[0] : -1;
}

/* ---- Summaries of selected values ------------------------------------------------------------- */

/*
 * Sum of magnitudes in double, in the order of NumPy's pairwise sum: up to 128 values in eight
 * interleaved sums, more as two halves, the first with a multiple of 8.
 */
static double sum_pairwise(const float *values, int64_t count)
{
    if (count > 128) {
        int64_t half = count / 2;
        half -= half % 8;
        return sum_pairwise(values, half) + sum_pairwise(values + half, count - half);
    }
    double total = 0;
    int64_t i = 0;
    if (count >= 8) {
        double sums[8] = {0};
        for (; i + 8 <= count; i += 8)
            for (int j = 0; j < 8; j++)
                sums[j] += fabsf(values[i + j]);
        total = ((sums[0] + sums[1]) + (sums[2] + sums[3])) +
                ((sums[4] + sums[5]) + (sums[6] + sums[7]));
    }
    for (; i < count; i++)
        total += fabsf(values[i]);
    return total;
}

/* Values that NumPy converts to double at a time when it sums float32 values. */
#define SUM_BUFFER 8192

int64_t ft_summarize(const float *values, int64_t count, int32_t limit, uint8_t *signs,
                     float *least, double *total)
{
    int32_t low = count ? MAGNITUDE : 0;
    int32_t high = 0;
    for (int64_t i = 0; i < count; i++) {
        int32_t bits = magnitude_bits(values[i]);
        low = bits < low ? bits : low;
        high = bits > high ? bits : high;
    }
    if (high >= limit)
        return ft_first_reaching(values, count, limit);
    for (int64_t i = 0; i < count; i++)
        signs[i] = values[i] > 0;
    memcpy(least, &low, sizeof low);
    *total = 0;
    for (int64_t i = 0; i < count; i += SUM_BUFFER)
        *total += sum_pairwise(values + i, count - i < SUM_BUFFER ? count - i : SUM_BUFFER);
    return -1;
}

/* ---- Golomb-coded positions ------------------------------------------------------------------- */

int64_t ft_encode_gaps(const int64_t *positions, int64_t count, int width, uint8_t *remainders,
                       uint8_t *quotients)
{
    const uint64_t mask = ((uint64_t)1 << width) - 1;
    int64_t previous = -1;
    uint64_t low_word = 0;
    int low_bits = 0;
    uint64_t word = 0;
    int bits = 0;
    int64_t at = 0;
    for (int64_t j = 0; j < count; j++) {
        uint64_t gap = (uint64_t)(positions[j] - previous - 1);
        previous = positions[j];
        uint64_t low = gap & mask;
        low_word |= low << low_bits;
        low_bits += width;
        if (low_bits >= 64) {
            store_eight(remainders, low_word);
            remainders += 8;
            low_bits -= 64;
            /* Shifting by the whole width of 64 would be undefined; width is below that. */
            low_word = low_bits ? low >> (width - low_bits) : 0;
        }
        uint64_t ones = gap >> width;
        while ((uint64_t)bits + ones >= 64) {
            store_eight(quotients + at, word | (~(uint64_t)0 << bits));
            at += 8;
            ones -= (uint64_t)(64 - bits);
            word = 0;
            bits = 0;
        }
        word |= (((uint64_t)1 << ones) - 1) << bits;
        bits += (int)ones + 1;
        if (bits == 64) {
            store_eight(quotients + at, word);
            at += 8;
            word = 0;
            bits = 0;
        }
    }
    store_word(remainders, low_word, (low_bits + 7) >> 3);
    store_word(quotients + at, word, (bits + 7) >> 3);
    return 8 * at + bits;
}

int64_t ft_decode_gaps(const uint8_t *remainders, const uint8_t *quotients, int64_t unary_bits,
                       int width, int64_t size, int64_t *positions, int64_t count)
{
    const int64_t largest_quotient = size >> width;
    int64_t previous = -1;
    int64_t terminator = -1; /* the bit at which the last quotient ended */
    int64_t low_at = 0;
    int64_t found = 0;
    if (count == 0)
        return 0;
    for (int64_t start = 0; start < unary_bits; start += 64) {
        /* A zero ends a quotient: look for ones in the inverted word. */
        uint64_t word = ~load_eight(quotients + (start >> 3));
        while (word && found < count) {
            int64_t at = start + trailing_zeros(word);
            word &= word - 1;
            int64_t quotient = at - terminator - 1;
            if (at >= unary_bits || quotient > largest_quotient)
                return -1;
            terminator = at;
            int64_t low = (int64_t)get_bits(remainders, low_at, width);
            low_at += width;
            previous += (quotient << width) + low + 1;
            if (previous >= size)
                return -1;
            positions[found++] = previous;
        }
        if (found == count)
            return terminator + 1;
    }
    return -1;
}

/* ---- Levels of fixed width -------------------------------------------------------------------- */

void ft_pack_levels(const int32_t *levels, int64_t count, int width, uint8_t *out)
{
    const uint64_t mask = ((uint64_t)1 << width) - 1;
    uint64_t word = 0;
    int bits = 0;
    for (int64_t i = 0; i < count; i++) {
        uint64_t level = (uint32_t)levels[i] & mask;
        word |= level << bits;
        bits += width;
        if (bits >= 64) {
            store_eight(out, word);
            out += 8;
            bits -= 64;
            word = bits ? level >> (width - bits) : 0;
        }
    }
    store_word(out, word, (bits + 7) >> 3);
}

void ft_unpack_levels(const uint8_t *data, int width, int32_t *levels, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        levels[i] = (int32_t)(uint32_t)get_bits(data, i * width, width);
}

/* ---- Levels in Elias's omega code ------------------------------------------------------------- */

static int binary_digits(uint64_t value)
{
    int digits = 0;
    for (; value; value >>= 1)
        digits++;
    return digits;
}

static int64_t omega_length(uint64_t value)
{
    int64_t total = 1;
    while (value > 1) {
        int digits = binary_digits(value);
        total += digits;
        value = (uint64_t)(digits - 1);
    }
    return total;
}

/* The code of a number below 2**48, its first bit lowest. */
static uint64_t omega_code(uint64_t value)
{
    uint64_t code = 0;
    int64_t place = omega_length(value) - 1; /* the closing zero is there already */
    while (value > 1) {
        int digits = 0;
        for (uint64_t rest = value; rest; rest >>= 1) {
            place--;
            digits++;
            code |= (rest & 1) << place;
        }
        value = (uint64_t)(digits - 1);
    }
    return code;
}

/* Codes of small numbers, which are nearly all of them. */
#define OMEGA_SMALL 64

struct omega_table {
    uint64_t codes[OMEGA_SMALL];
    int64_t lengths[OMEGA_SMALL];
};

static void omega_fill(struct omega_table *table)
{
    table->codes[0] = 0;
    table->lengths[0] = 0; /* there is no code of 0 */
    for (uint64_t value = 1; value < OMEGA_SMALL; value++) {
        table->codes[value] = omega_code(value);
        table->lengths[value] = omega_length(value);
    }
}

static int64_t omega_measure(const struct omega_table *table, uint64_t value)
{
    return value < OMEGA_SMALL ? table->lengths[value] : omega_length(value);
}

/* Bits that wait until eight bytes are full. */
struct bit_writer {
    uint8_t *out;
    uint64_t word;
    int64_t used;
};

static void write_bits(struct bit_writer *writer, uint64_t code, int64_t length)
{
    int64_t used = writer->used + length;
    writer->word |= code << writer->used;
    if (used >= 64) {
        for (int i = 0; i < 8; i++)
            writer->out[i] = (uint8_t)(writer->word >> (8 * i));
        writer->out += 8;
        used -= 64;
        /* A length of 64 or more does not occur, so that 0 < length - used < 64. */
        writer->word = code >> (length - used);
    }
    writer->used = used;
}

static void write_omega(struct bit_writer *writer, const struct omega_table *table, uint64_t value)
{
    if (value < OMEGA_SMALL)
        write_bits(writer, table->codes[value], table->lengths[value]);
    else
        write_bits(writer, omega_code(value), omega_length(value));
}

static void end_bits(struct bit_writer *writer)
{
    for (int64_t i = 0; 8 * i < writer->used; i++)
        writer->out[i] = (uint8_t)(writer->word >> (8 * i));
}

static int bit_at(const uint8_t *data, int64_t at)
{
    return (data[at >> 3] >> (at & 7)) & 1;
}

/* The number at bit `at`; -1 if the stream ends early or the number exceeds `most`. */
static int64_t omega_get(const uint8_t *data, int64_t at, int64_t bits, int64_t most)
{
    int64_t value = 1;
    for (;;) {
        if (at >= bits)
            return -1;
        if (!bit_at(data, at))
            return value;
        if (value > 62 || at + value >= bits)
            return -1;
        int64_t digits = value + 1;
        uint64_t read = 0;
        for (int64_t i = 0; i < digits; i++)
            read = (read << 1) | (uint64_t)bit_at(data, at + i);
        at += digits;
        if (read > (uint64_t)most)
            return -1;
        value = (int64_t)read;
    }
}

static int64_t level_magnitude(int32_t level)
{
    return level < 0 ? -(int64_t)level : level;
}

int64_t ft_measure_levels(const int32_t *levels, int64_t count, int sparse)
{
    struct omega_table table;
    omega_fill(&table);
    int64_t total = 0;
    int64_t previous = -1;
    for (int64_t i = 0; i < count; i++) {
        int64_t magnitude = level_magnitude(levels[i]);
        if (!sparse) {
            total += omega_measure(&table, (uint64_t)magnitude + 1) + (magnitude != 0);
        } else if (magnitude) {
            total += omega_measure(&table, (uint64_t)(i - previous)) + 1;
            total += omega_measure(&table, (uint64_t)magnitude);
            previous = i;
        }
    }
    return total;
}

void ft_encode_levels(const int32_t *levels, int64_t count, int sparse, uint8_t *out)
{
    struct omega_table table;
    omega_fill(&table);
    struct bit_writer writer = {out, 0, 0};
    int64_t previous = -1;
    for (int64_t i = 0; i < count; i++) {
        int64_t magnitude = level_magnitude(levels[i]);
        uint64_t positive = levels[i] > 0;
        if (!sparse) {
            write_omega(&writer, &table, (uint64_t)magnitude + 1);
            if (magnitude)
                write_bits(&writer, positive, 1);
        } else if (magnitude) {
            write_omega(&writer, &table, (uint64_t)(i - previous));
            write_bits(&writer, positive, 1);
            write_omega(&writer, &table, (uint64_t)magnitude);
            previous = i;
        }
    }
    end_bits(&writer);
}

int64_t ft_decode_levels(const uint8_t *data, int64_t bytes, int sparse, int64_t count,
                         int64_t steps, int32_t *levels, int64_t size)
{
    const int64_t bits = 8 * bytes;
    int64_t at = 0;
    int64_t place = -1;
    for (int64_t i = 0; i < count; i++) {
        int64_t magnitude = 0;
        if (sparse) {
            int64_t gap = omega_get(data, at, bits, size);
            if (gap < 0 || place + gap >= size)
                return -1;
            at += omega_length((uint64_t)gap);
            place += gap;
        } else {
            place++;
            magnitude = omega_get(data, at, bits, steps + 1) - 1;
            if (magnitude < 0)
                return -1;
            at += omega_length((uint64_t)magnitude + 1);
            if (!magnitude)
                continue;
        }
        if (at >= bits)
            return -1;
        int positive = bit_at(data, at);
        at++;
        if (sparse) {
            magnitude = omega_get(data, at, bits, steps);
            if (magnitude < 0)
                return -1;
            at += omega_length((uint64_t)magnitude);
        }
        levels[place] = (int32_t)(positive ? magnitude : -magnitude);
    }
    return at;
}

/* ---- Adding updates ----------------------------------------------------------------------------- */

void ft_scatter_add(float *out, const int64_t *positions, const float *values, int64_t count,
                    float scale)
{
    for (int64_t i = 0; i < count; i++)
        out[positions[i]] += scale * values[i];
}

/* Values to prefetch ahead: positions of a large model are in as many pages. */
#define SCATTER_AHEAD 64

void ft_scatter_signs(float *out, const int64_t *positions, const uint8_t *signs, int64_t count,
                      float step)
{
    /* Looked up, not chosen: half of the branches would be mispredicted. */
    const float steps[2] = {-step, step};
    for (int64_t i = 0; i < count; i++) {
        if (i + SCATTER_AHEAD < count)
            prefetch(out + positions[i + SCATTER_AHEAD]);
        out[positions[i]] += steps[signs[i] != 0];
    }
}

void ft_apply_sign_counts(float *weights, const float *base, const int32_t *counts, int64_t size,
                     double step)
{
    for (int64_t i = 0; i < size; i++)
        weights[i] = (float)((double)base[i] + step * (double)counts[i]);
}

void ft_add_bits(uint64_t *lanes, const uint8_t *bits, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i++) {
        /* Spread the bits of a byte over the bytes of a word: one multiplication places eight
         * copies so that each byte holds another bit at another place, a mask keeps those bits. */
        uint64_t copies = (uint64_t)bits[i] * UINT64_C(0x0101010101010101);
        uint64_t spread = copies & UINT64_C(0x8040201008040201);
        /* The sum sets the highest bit of every byte but zero, without a carry to the next one. */
        spread += UINT64_C(0x7f7f7f7f7f7f7f7f);
        lanes[i] += spread >> 7 & UINT64_C(0x0101010101010101);
    }
}

void ft_add_lanes(int32_t *counts, int64_t size, uint64_t *lanes)
{
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    /* Byte j of a lane is byte j in memory: a loop that compilers vectorize. */
    const uint8_t *bytes = (const uint8_t *)lanes;
    for (int64_t i = 0; i < size; i++)
        counts[i] += bytes[i];
#else
    for (int64_t i = 0; i < size; i++)
        counts[i] += (int32_t)(lanes[i >> 3] >> (8 * (i & 7)) & 0xff);
#endif
    memset(lanes, 0, (size_t)((size + 7) / 8) * sizeof *lanes);
}

/* ---- Random choices ------------------------------------------------------------------------------ */

static uint64_t split_mix(uint64_t seed, uint64_t i)
{
    uint64_t z = seed + (i + 1) * UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

void ft_sample_positions(uint64_t seed, int64_t size, int64_t *positions, int64_t count)
{
    int64_t taken = 0;
    for (int64_t i = 0; i < size && taken < count; i++) {
        /* Position i is taken with the chance (still to take) / (size - i). */
        double chance = (double)(split_mix(seed, (uint64_t)i) >> 11) * 0x1p-53;
        if (chance * (double)(size - i) < (double)(count - taken))
            positions[taken++] = i;
    }
}

void ft_random_signs(uint64_t seed, int64_t first, float *signs, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        signs[i] = split_mix(seed, (uint64_t)(first + i)) >> 63 ? 1.0f : -1.0f;
}

void ft_rotate(float *x, int64_t size)
{
    for (int64_t half = 1; half < size; half *= 2)
        for (int64_t start = 0; start < size; start += 2 * half)
            for (int64_t i = start; i < start + half; i++) {
                float a = x[i];
                float b = x[i + half];
                x[i] = a + b;
                x[i + half] = a - b;
            }
    const float factor = (float)(1.0 / sqrt((double)size));
    for (int64_t i = 0; i < size; i++)
        x[i] *= factor;
}

/* ---- Sums of sparse updates ------------------------------------------------------------------------ */

void ft_sort_entries(const int64_t *positions, const float *values, int64_t count,
                     const int64_t *ends, int64_t updates, int64_t size, int64_t *out_positions,
                     int32_t *out_updates, float *out_values, int32_t *order, int32_t *swap,
                     int64_t *counters)
{
    /* A radix sort is stable, and with few passes several times as fast as one by comparison. */
    int bits = 1;
    if (count == 0)
        return;
    while ((size - 1) >> bits)
        bits++;
    const int passes = (bits + 10) / 11;
    const int width = (bits + passes - 1) / passes;
    const int64_t mask = ((int64_t)1 << width) - 1;
    int32_t *from = order;
    int32_t *to = swap;
    for (int64_t j = 0; j < count; j++)
        from[j] = (int32_t)j;
    for (int pass = 0; pass < passes; pass++) {
        const int shift = pass * width;
        memset(counters, 0, (size_t)(mask + 2) * sizeof *counters);
        for (int64_t j = 0; j < count; j++)
            counters[((positions[j] >> shift) & mask) + 1]++;
        for (int64_t digit = 0; digit < mask; digit++)
            counters[digit + 1] += counters[digit];
        for (int64_t j = 0; j < count; j++) {
            int32_t entry = from[j];
            to[counters[(positions[entry] >> shift) & mask]++] = entry;
        }
        int32_t *sorted = to;
        to = from;
        from = sorted;
    }
    /* `to` is free now: the update of each entry, by its place in the input. */
    int64_t start = 0;
    for (int64_t update = 0; update < updates; update++) {
        for (int64_t j = start; j < ends[update]; j++)
            to[j] = (int32_t)update;
        start = ends[update];
    }
    for (int64_t j = 0; j < count; j++) {
        int32_t entry = from[j];
        out_positions[j] = positions[entry];
        out_updates[j] = to[entry];
        out_values[j] = values[entry];
    }
}

int64_t ft_count_distinct(const int64_t *positions, int64_t count)
{
    int64_t found = 0;
    int64_t previous = -1;
    for (int64_t j = 0; j < count; j++) {
        found += positions[j] != previous;
        previous = positions[j];
    }
    return found;
}

void ft_measure_keys(const int64_t *positions, const int32_t *updates, int64_t count,
                     int64_t number, int key_width, int place_width, int cell_width,
                     int64_t bits[3])
{
    int64_t key_bits = count;
    int64_t place_bits = 0;
    int64_t cell_bits = count;
    int64_t row = -1;
    int64_t place = -1;
    int64_t last_key = -1;
    int64_t last_cell = -1;
    for (int64_t j = 0; j < count; j++) {
        int64_t key = positions[j] * number + updates[j];
        key_bits += (key - last_key - 1) >> key_width;
        last_key = key;
        if (positions[j] != place) {
            place_bits += ((positions[j] - place - 1) >> place_width) + 1;
            place = positions[j];
            row++;
        }
        int64_t cell = row * number + updates[j];
        cell_bits += (cell - last_cell - 1) >> cell_width;
        last_cell = cell;
    }
    bits[0] = key_bits;
    bits[1] = place_bits;
    bits[2] = cell_bits;
}

void ft_nest_keys(const int64_t *positions, const int32_t *updates, int64_t count, int64_t number,
                  int64_t *distinct, int64_t *cells)
{
    int64_t row = -1;
    int64_t previous = -1;
    for (int64_t j = 0; j < count; j++) {
        if (positions[j] != previous) {
            row++;
            previous = positions[j];
            distinct[row] = previous;
        }
        cells[j] = row * number + updates[j];
    }
}

int64_t ft_split_keys(const int64_t *keys, int64_t count, int64_t number, int64_t *rows,
                      int32_t *updates)
{
    /* Dividing whole numbers takes most processors several times as long as multiplying. */
    const double share = 1.0 / (double)number;
    int64_t found = 0;
    int64_t previous = -1;
    for (int64_t j = 0; j < count; j++) {
        int64_t row = (int64_t)((double)keys[j] * share);
        int64_t update = keys[j] - row * number;
        while (update < 0) {
            row--;
            update += number;
        }
        while (update >= number) {
            row++;
            update -= number;
        }
        rows[j] = row;
        updates[j] = (int32_t)update;
        found += row != previous;
        previous = row;
    }
    return found;
}

int ft_fill_ternary_values(const int64_t *positions, const int32_t *updates, int64_t count,
                    const uint8_t *signs, const float *magnitudes, int64_t num_updates,
                    const int64_t *ends, int64_t segments, uint8_t *used, float *values)
{
    int64_t segment = 0;
    for (int64_t j = 0; j < count; j++) {
        while (positions[j] >= ends[segment])
            segment++;
        int64_t which = updates[j] * segments + segment;
        used[which] = 1;
        const float pair[2] = {-magnitudes[which], magnitudes[which]};
        values[j] = pair[bit_at(signs, j)];
    }
    for (int64_t which = 0; which < num_updates * segments; which++) {
        float magnitude = magnitudes[which];
        if (!(magnitude >= 0) || (magnitude > 0) != used[which])
            return 0;
    }
    return 1;
}
