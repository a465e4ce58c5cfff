/*
 * fedtern.h: the kernels of fedtern as a C99 library.
 *
 * No dependencies besides the C library's memcpy, memset and math functions, no allocation, no
 * global state. Callers own all buffers. The Python extension and the device client use the same
 * functions.
 *
 * Conventions
 *   - Sizes and positions are int64_t. Vectors are contiguous arrays of float.
 *   - Bit streams are little-endian: bit 0 of byte 0 comes first, on every platform.
 *   - Buffers that are read a word at a time carry FT_SPARE readable bytes behind their end.
 *   - Functions that can fail return a negative number and leave outputs unspecified.
 *   - Results are the same bit for bit on every platform: compile with -ffp-contract=off and
 *     without -ffast-math.
 */
#ifndef FEDTERN_H
#define FEDTERN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FT_VERSION_MAJOR 1
#define FT_VERSION_MINOR 3
#define FT_VERSION "1.3"

/* Readable bytes that must follow a bit stream that is read a word at a time. */
#define FT_SPARE 8

/* Values that ft_select compares at a time: the room for candidates must exceed k by this many. */
#define FT_BLOCK 64

/* Counters that ft_select needs as scratch memory. */
#define FT_SELECT_SCRATCH 2048

/* The instruction set that is in use: "avx512", "avx2" or "portable". */
const char *ft_instruction_set(void);

/* ---- Selection ------------------------------------------------------------------------------ */

/*
 * Add y to x (unless y is NULL) and find the k largest magnitudes that reach a threshold.
 *
 * Magnitudes are compared as the integers that their bits spell, so NaN and infinity come first.
 * Ties go to the lowest position; zeros are never selected.
 *
 *   x, y        vectors of length size; x is written to if y is given
 *   threshold   bits of the least magnitude to look at, at least 1
 *   positions   receives the positions, ascending
 *   values      receives the values of x there
 *   room        length of positions and values, at least min(k, size) + FT_BLOCK
 *   scratch     FT_SELECT_SCRATCH counters
 *
 * Returns the number of positions found, at most k. Fewer than k mean that the threshold was too
 * high; call again with y = NULL and a lower one.
 */
int64_t ft_select(float *x, const float *y, int64_t size, int64_t k, int32_t threshold,
                  int64_t *positions, float *values, int64_t room, int64_t *scratch);

/* Position of the first magnitude whose bits reach a threshold; -1 if there is none. */
int64_t ft_first_reaching(const float *x, int64_t size, int32_t threshold);

/*
 * Describe values in one call, so that they can be replaced by signs and a mean magnitude.
 *
 *   limit       bits of the least magnitude that is refused
 *   signs       receives 1 for each value above zero, 0 for each other one
 *   least       receives the smallest magnitude, 0 without values
 *   total       receives the sum of the magnitudes, in the order of NumPy's
 *               np.add.reduce(magnitudes, dtype=np.float64)
 *
 * Returns -1, or the position of the first value that is refused; outputs are then unspecified.
 */
int64_t ft_summarize(const float *values, int64_t count, int32_t limit, uint8_t *signs,
                     float *least, double *total);

/* ---- Golomb-coded positions (Algorithms 3 and 4 of the paper) -------------------------------- */

/*
 * Write the gaps between strictly ascending positions, the first of at least 0: the low `width` bits of each gap to `remainders`,
 * and gap >> width as that many ones and a zero to `quotients`. Returns the bits of the quotients.
 */
int64_t ft_encode_gaps(const int64_t *positions, int64_t count, int width, uint8_t *remainders,
                       uint8_t *quotients);

/*
 * Read `count` positions below `size`. Both streams carry FT_SPARE readable bytes behind them.
 * Returns the bits of the quotients that were read, or -1 if the stream ends early or leads to a
 * position of `size` or more.
 */
int64_t ft_decode_gaps(const uint8_t *remainders, const uint8_t *quotients, int64_t unary_bits,
                       int width, int64_t size, int64_t *positions, int64_t count);

/* ---- Adaptive coding of positions and small integers ------------------------------------------ */

/*
 * Positions as binary decisions of a range coder whose probabilities adapt to the rows and columns
 * of each tensor. Integers only, so every platform writes the same bytes.
 *
 *   positions   strictly ascending, below ends[tensors - 1]
 *   magnitudes  one number from 1 to `largest` for each position; unused if `largest` is 1
 *   ends        one past the last position of each tensor
 *   rows        the length of each tensor's first axis, a divisor of its size; 1 for a vector
 *   scratch     ft_adaptive_scratch(ends, rows, tensors) numbers
 */

/* Numbers that the functions below need as scratch memory. */
int64_t ft_adaptive_scratch(const int64_t *ends, const int64_t *rows, int64_t tensors);

/* Returns the length of the stream, or -1 if it is longer than `room` or the input is not valid. */
int64_t ft_encode_adaptive(const int64_t *positions, const int32_t *magnitudes, int64_t count,
                           int32_t largest, const int64_t *ends, const int64_t *rows,
                           int64_t tensors, uint32_t *scratch, uint8_t *out, int64_t room);

/*
 * Read a stream of `size` bytes, which must be the whole of it. Returns `size`, or -1 if the stream
 * is not one of `count` positions and magnitudes. Takes time proportional to count plus the number
 * of tensors and their rows.
 */
int64_t ft_decode_adaptive(const uint8_t *data, int64_t size, int64_t *positions,
                           int32_t *magnitudes, int64_t count, int32_t largest,
                           const int64_t *ends, const int64_t *rows, int64_t tensors,
                           uint32_t *scratch);

/* ---- Levels of fixed width -------------------------------------------------------------------- */

/* Write non-negative levels at `width` bits each, 1 to 32. */
void ft_pack_levels(const int32_t *levels, int64_t count, int width, uint8_t *out);

/* Read them back; `data` carries FT_SPARE readable bytes behind it. */
void ft_unpack_levels(const uint8_t *data, int width, int32_t *levels, int64_t count);

/* ---- Levels in Elias's omega code ------------------------------------------------------------- */

/* Bits that ft_encode_levels writes. */
int64_t ft_measure_levels(const int32_t *levels, int64_t count, int sparse);

/* Write levels to a zeroed buffer. Sparse: distance, sign and magnitude of each non-zero. */
void ft_encode_levels(const int32_t *levels, int64_t count, int sparse, uint8_t *out);

/*
 * Fill zeroed `levels` with `count` numbers (the non-zeros if sparse, else all). Returns the bits
 * read, or -1 if the stream ends early, runs past the last level or holds one above `steps`.
 */
int64_t ft_decode_levels(const uint8_t *data, int64_t bytes, int sparse, int64_t count,
                         int64_t steps, int32_t *levels, int64_t size);

/* ---- Adding updates ---------------------------------------------------------------------------- */

/* out[positions[i]] += scale * values[i], in order. */
void ft_scatter_add(float *out, const int64_t *positions, const float *values, int64_t count,
                    float scale);

/* out[positions[i]] += step if signs[i] is not 0, -= step otherwise. */
void ft_scatter_signs(float *out, const int64_t *positions, const uint8_t *signs, int64_t count,
                      float step);

/* weights = base + step * counts, computed in double and rounded once. */
void ft_apply_sign_counts(float *weights, const float *base, const int32_t *counts, int64_t size,
                     double step);

/* Count the bits of one set: byte j of lane i counts bit 8 i + j. Call at most 255 times. */
void ft_add_bits(uint64_t *lanes, const uint8_t *bits, int64_t bytes);

/* Add the lanes to one counter per bit and reset them. */
void ft_add_lanes(int32_t *counts, int64_t size, uint64_t *lanes);

/* ---- Random choices that both sides make alike (SplitMix64) ----------------------------------- */

/* A random subset of 0 ... size - 1 with `count` elements, ascending. */
void ft_sample_positions(uint64_t seed, int64_t size, int64_t *positions, int64_t count);

/* 1 or -1 by the top bits of the numbers from `first` on. */
void ft_random_signs(uint64_t seed, int64_t first, float *signs, int64_t count);

/* Multiply by the orthonormal Hadamard matrix, in place; size is a power of two. */
void ft_rotate(float *x, int64_t size);

/* ---- Sums of sparse updates --------------------------------------------------------------------- */

/* Counters that ft_sort_entries needs as scratch memory. */
#define FT_SORT_SCRATCH 2050

/*
 * Sort the entries of several updates by position, those of one position by update.
 *
 *   positions, values   the entries of all updates in a row, `count` in all
 *   ends                one past the last entry of each of `updates` updates
 *   order, swap         scratch memory of `count` numbers each
 *   counters            scratch memory of FT_SORT_SCRATCH numbers
 */
void ft_sort_entries(const int64_t *positions, const float *values, int64_t count,
                     const int64_t *ends, int64_t updates, int64_t size, int64_t *out_positions,
                     int32_t *out_updates, float *out_values, int32_t *order, int32_t *swap,
                     int64_t *counters);

/* Number of different positions among ascending ones. */
int64_t ft_count_distinct(const int64_t *positions, int64_t count);

/*
 * Bits of the quotients of Golomb-coded keys position * number + update: flat keys (bits[0]), and
 * nested, the positions (bits[1]) and the cells of the table of positions by updates (bits[2]).
 */
void ft_measure_keys(const int64_t *positions, const int32_t *updates, int64_t count,
                     int64_t number, int key_width, int place_width, int cell_width,
                     int64_t bits[3]);

/* Write every position once, and each entry as a cell of the table of positions by updates. */
void ft_nest_keys(const int64_t *positions, const int32_t *updates, int64_t count, int64_t number,
                  int64_t *distinct, int64_t *cells);

/* rows = keys / number, updates = keys % number. Returns the number of different rows. */
int64_t ft_split_keys(const int64_t *keys, int64_t count, int64_t number, int64_t *rows,
                      int32_t *updates);

/*
 * Fill in the signed magnitude of each entry, from the magnitudes [updates][segments] and one sign
 * bit per entry. `used` is zeroed scratch memory of updates * segments bytes. Returns 0 if a
 * magnitude is negative, zero although it is used, or not zero although it is not; else 1.
 */
int ft_fill_ternary_values(const int64_t *positions, const int32_t *updates, int64_t count,
                    const uint8_t *signs, const float *magnitudes, int64_t num_updates,
                    const int64_t *ends, int64_t segments, uint8_t *used, float *values);

#ifdef __cplusplus
}
#endif

#endif /* FEDTERN_H */
