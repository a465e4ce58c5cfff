/*
 * fedtern.core.kernels.compiled: a thin Python wrapper around kernels.c.
 *
 * Limited API of Python 3.11: one binary for every later version. Every function takes contiguous
 * buffers (NumPy arrays), checks that their lengths fit together, and releases the interpreter lock
 * while it works. The Python module beside it has the docstrings.
 */
#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030B0000
#endif
#include <Python.h>

#include "fedtern.h"

#define MOST_BUFFERS 10

/* The buffers of one call, released together. */
struct buffers {
    Py_buffer views[MOST_BUFFERS];
    int count;
};

static void release(struct buffers *held)
{
    while (held->count)
        PyBuffer_Release(&held->views[--held->count]);
}

/* Take the next buffer; `item` is the size of its items. Returns NULL with an exception set. */
static void *take(struct buffers *held, PyObject *object, Py_ssize_t item, int writable,
                  int64_t *length)
{
    Py_buffer *view = &held->views[held->count];
    int flags = PyBUF_C_CONTIGUOUS | (writable ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(object, view, flags) < 0)
        return NULL;
    held->count++;
    if (view->itemsize != item && !(view->len == 0)) {
        PyErr_Format(PyExc_ValueError, "expected items of %zd bytes, got %zd", item,
                     view->itemsize);
        return NULL;
    }
    if ((uintptr_t)view->buf % (uintptr_t)item) {
        PyErr_SetString(PyExc_ValueError, "the buffer is not aligned");
        return NULL;
    }
    *length = view->len / item;
    /* An empty buffer may have no memory at all; the kernels never look at it. */
    static char nothing[8];
    return view->buf ? view->buf : nothing;
}

static PyObject *fail(struct buffers *held, const char *message)
{
    release(held);
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, message);
    return NULL;
}

static int take_number(PyObject *object, int64_t *number)
{
    long long value = PyLong_AsLongLong(object);
    if (value == -1 && PyErr_Occurred())
        return -1;
    *number = value;
    return 0;
}

#define ARGUMENTS(wanted)                                                                         \
    struct buffers held = {.count = 0};                                                           \
    (void)self;                                                                                   \
    if (count != (wanted))                                                                        \
        return PyErr_Format(PyExc_TypeError, "expected %d arguments, got %zd", wanted, count)

#define READ(type, name, at)                                                                      \
    int64_t name##_length = 0;                                                                    \
    const type *name = take(&held, args[at], (Py_ssize_t)sizeof(type), 0, &name##_length);        \
    if (!name)                                                                                    \
        return fail(&held, "")

#define WRITE(type, name, at)                                                                     \
    int64_t name##_length = 0;                                                                    \
    type *name = take(&held, args[at], (Py_ssize_t)sizeof(type), 1, &name##_length);              \
    if (!name)                                                                                    \
        return fail(&held, "")

#define NUMBER(name, at)                                                                          \
    int64_t name = 0;                                                                             \
    if (take_number(args[at], &name) < 0)                                                         \
        return fail(&held, "")

#define CHECK(condition, message)                                                                 \
    if (!(condition))                                                                             \
        return fail(&held, message)

#define UNLOCKED(statement)                                                                       \
    Py_BEGIN_ALLOW_THREADS statement;                                                             \
    Py_END_ALLOW_THREADS release(&held)

typedef PyObject *const *arguments;

static PyObject *select_largest(PyObject *self, arguments args, Py_ssize_t count)
{
    ARGUMENTS(6);
    int64_t scratch[FT_SELECT_SCRATCH]; /* 16 KiB */
    /* Without a vector to add, x is only read. */
    int64_t x_length = 0;
    float *x = take(&held, args[0], (Py_ssize_t)sizeof *x, args[1] != Py_None, &x_length);
    if (!x)
        return fail(&held, "");
    int64_t y_length = x_length;
    const float *y = NULL;
    if (args[1] != Py_None && !(y = take(&held, args[1], (Py_ssize_t)sizeof *y, 0, &y_length)))
        return fail(&held, "");
    NUMBER(k, 2);
    NUMBER(threshold, 3);
    WRITE(int64_t, positions, 4);
    WRITE(float, values, 5);
    int64_t least_room = (k < x_length ? k : x_length) + FT_BLOCK;
    CHECK(y_length == x_length, "x and y must have the same length");
    CHECK(k >= 0, "k must not be negative");
    CHECK(threshold >= 1 && threshold <= INT32_MAX, "threshold must be at least 1");
    CHECK(positions_length == values_length && positions_length >= least_room,
          "positions and values are too short");
    int64_t found;
    UNLOCKED(found = ft_select(x, y, x_length, k, (int32_t)threshold, positions, values,
                               positions_length, scratch));
    return PyLong_FromLongLong(found);
}

static PyObject *first_reaching(PyObject *self, arguments args, Py_ssize_t count)
{
    ARGUMENTS(2);
    READ(float, x, 0);
    NUMBER(threshold, 1);
    CHECK(threshold >= 1 && threshold <= INT32_MAX, "threshold must be at least 1");
    int64_t found;
    UNLOCKED(found = ft_first_reaching(x, x_length, (int32_t)threshold));
    return PyLong_FromLongLong(found);
}

static PyObject *summarize(PyObject *self, arguments args, Py_ssize_t count)
{
    ARGUMENTS(3);
    READ(float, values, 0);
    NUMBER(limit, 1);
    WRITE(uint8_t, signs, 2);
    CHECK(limit >= 1 && limit <= INT32_MAX, "limit must be at least 1");
    CHECK(signs_length == values_length, "values and signs must have the same length");
    int64_t refused;
    float least = 0;
    double total = 0;
    UNLOCKED(refused = ft_summarize(values, values_length, (int32_t)limit, signs, &least, &total));
    return Py_BuildValue("(Lfd)", (long long)refused, least, total);
}

static PyObject *encode_gaps(PyObject *self, arguments args, Py_ssize_t count)
{
    ARGUMENTS(4);
    READ(int64_t, positions, 0);
    NUMBER(width, 1);
    WRITE(uint8_t, remainders, 2);
    WRITE(uint8_t, quotients, 3);
    CHECK(width >= 0 && width <= 48, "width must be in [0, 48]");
    CHECK(8 * remainders_length >= positions_length * width, "remainders are too short");
    int64_t last = -1;
    int ascending = 1;
    for (int64_t i = 0; i < positions_length; i++) {
        ascending &= positions[i] > last;
        last = positions[i];
    }
    CHECK(ascending, "positions must be strictly increasing");
    /* The quotients of the gaps add up to at most the quotient of their sum. */
    int64_t quotients_sum = positions_length ? (last + 1 - positions_length) >> width : 0;
    CHECK(8 * quotients_length >= quotients_sum + positions_length, "quotients are too short");
    int64_t bits;
    UNLOCKED(bits = ft_encode_gaps(positions, positions_length, (int)width, remainders,
                                   quotients));
    return PyLong_FromLongLong(bits);
}

static PyObject *decode_gaps(PyObject *self, arguments args, Py_ssize_t count)
{
    ARGUMENTS(6);
    READ(uint8_t, remainders, 0);
    READ(uint8_t, quotients, 1);
    NUMBER(unary_bits, 2);
    NUMBER(width, 3);
    NUMBER(size, 4);
    WRITE(int64_t, positions, 5);
    CHECK(width >= 0 && width <= 48, "width must be in [0, 48]");
    CHECK(unary_bits >= 0 && (unary_bits + 7) / 8 + FT_SPARE <= quotients_length,
          "quotients are too short");
    CHECK((positions_length * width + 7) / 8 + FT_SPARE <= remainders_length,
          "remainders are too short");
    int64_t used;
    UNLOCKED(used = ft_decode_gaps(remainders, quotients, unary_bits, (int)width, size, positions,
                                   positions_length));
    return PyLong_FromLongLong(used);
}

/* Whether tensors follow each other and each has whole rows. */
static int is_layout(const int64_t *ends, const int64_t *rows, int64_t tensors)
{
    int64_t first = 0;
    for (int64_t i = 0; i < tensors; i++) {
        int64_t size = ends[i] - first;
        if (size < 0 || rows[i] < 0 || (rows[i] == 0 && size) || (rows[i] && size % rows[i]))
            return 0;
        first = ends[i];
    }
    return 1;
}

static PyObject *adaptive_scratch(PyObject *self, arguments args, Py_ssize_t count)
{
    ARGUMENTS(2);
    READ(int64_t, ends, 0);
    READ(int64_t, rows, 1);
    CHECK(ends_length == rows_length && is_layout(ends, rows, ends_length),
          "ends and rows are not those of tensors");
    int64_t length;
    UNLOCKED(length = ft_adaptive_scratch(ends, rows, ends_length));
    return PyLong_FromLongLong(length);
}

static PyObject *encode_adaptive(PyObject *self, arguments args, Py_ssize_t count)
{
    ARGUMENTS(7);
    READ(int64_t, positions, 0);
    READ(int32_t, magnitudes, 1);
    NUMBER(largest, 2);
    READ(int64_t, ends, 3);
    READ(int64_t, rows, 4);
    WRITE(uint32_t, scratch, 5);
    WRITE(uint8_t, out, 6);
    CHECK(ends_length == rows_length && is_layout(ends, rows, ends_length),
          "ends and rows are not those of tensors");
    CHECK(scratch_length >= ft_adaptive_scratch(ends, rows, ends_length), "scratch is too short");
    CHECK(largest >= 1 && largest <= INT32_MAX, "largest must be in [1, 2**31)");
    CHECK(largest == 1 || magnitudes_length == positions_length,
          "positions and magnitudes must have the same length");
    int64_t last = -1;
    int valid = 1;
    for (int64_t i = 0; i < positions_length; i++) {
        valid &= positions[i] > last;
        last = positions[i];
    }
    for (int64_t i = 0; largest > 1 && i < magnitudes_length; i++)
        valid &= magnitudes[i] >= 1 && magnitudes[i] <= largest;
    CHECK(valid && last < (ends_length ? ends[ends_length - 1] : 0),
          "positions must be strictly increasing and magnitudes in range");
    int64_t bytes;
    UNLOCKED(bytes = ft_encode_adaptive(positions, magnitudes, positions_length, (int32_t)largest,
                                        ends, rows, ends_length, scratch, out, out_length));
    return PyLong_FromLongLong(bytes);
}

static PyObject *decode_adaptive(PyObject *self, arguments args, Py_ssize_t count)
{
    ARGUMENTS(7);
    READ(uint8_t, data, 0);
    WRITE(int64_t, positions, 1);
    WRITE(int32_t, magnitudes, 2);
    NUMBER(largest, 3);
    READ(int64_t, ends, 4);
    READ(int64_t, rows, 5);
    WRITE(uint32_t, scratch, 6);
    CHECK(ends_length == rows_length && is_layout(ends, rows, ends_length),
          "ends and rows are not those of tensors");
    CHECK(scratch_length >= ft_adaptive_scratch(ends, rows, ends_length), "scratch is too short");
    CHECK(largest >= 1 && largest <= INT32_MAX, "largest must be in [1, 2**31)");
    CHECK(largest == 1 || magnitudes_length == positions_length,
          "positions and magnitudes must have the same length");
    int64_t used;
    UNLOCKED(used = ft_decode_adaptive(data, data_length, positions, magnitudes, positions_length,
                                       (int32_t)largest, ends, rows, ends_length, scratch));
    return PyLong_FromLongLong(used);
}

static PyObject *pack_levels(PyObject *self, arguments args, Py_ssize_t count)
{
    ARGUMENTS(3);
    READ(int32_t, levels, 0);
    NUMBER(width, 1);
    WRITE(uint8_t, out, 2);
    CHECK(width >= 1 && width <= 32, "width must be in [1, 32]");
    CHECK(8 * out_length >= levels_length * width, "out is too short");
    UNLOCKED(ft_pack_levels(levels, levels_length, (int)width, out));
    Py_RETURN_NONE;
}

static PyObject *unpack_levels(PyObject *self, arguments args, Py_ssize_t count)
{
    ARGUMENTS(3);
    READ(uint8_t, data, 0);
    NUMBER(width, 1);
    WRITE(int32_t, levels, 2);
    CHECK(width >= 1 && width <= 32, "width must be in [1, 32]");
    CHECK((levels_length * width + 7) / 8 + FT_SPARE <= data_length, "data is too short");
    UNLOCKED(ft_unpack_levels(data, (int)width, levels, levels_length));
    Py_RETURN_NONE;
}

static PyObject *measure_levels(PyObject *self, arguments args, Py_ssize_t count)
{
    ARGUMENTS(2);
    READ(int32_t, levels, 0);
    NUMBER(sparse, 1);
    int64_t bits;
    UNLOCKED(bits = ft_measure_levels(levels, levels_length, sparse != 0));
    return PyLong_FromLongLong(bits);
}

static PyObject *encode_levels(PyObject *self, arguments args, Py_ssize_t count)
{
    ARGUMENTS(3);
    READ(int32_t, levels, 0);
    NUMBER(sparse, 1);
    WRITE(uint8_t, out, 2);
    int64_t bits;
    Py_BEGIN_ALLOW_THREADS bits = ft_measure_levels(levels, levels_length, sparse != 0);
    Py_END_ALLOW_THREADS CHECK(8 * out_length >= bits, "out is too short");
    UNLOCKED(ft_encode_levels(levels, levels_length, sparse != 0, out));
    Py_RETURN_NONE;
}

static PyObject *decode_levels(PyObject *self, arguments args, Py_ssize_t count)
{
    ARGUMENTS(5);
    READ(uint8_t, data, 0);
    NUMBER(sparse, 1);
    NUMBER(numbers, 2);
    NUMBER(steps, 3);
    WRITE(int32_t, levels, 4);
    CHECK(numbers >= 0 && (sparse || numbers <= levels_length), "more numbers than levels");
    CHECK(steps >= 0 && steps <= INT32_MAX, "steps must be in [0, 2**31)");
    int64_t used;
    UNLOCKED(used = ft_decode_levels(data, data_length, sparse != 0, numbers, steps, levels,
                                     levels_length));
    return PyLong_FromLongLong(used);
}

/* Whether every position is one of a vector of this length. */
static int all_within(const int64_t *positions, int64_t count, int64_t size)
{
    int within = 1;
    for (int64_t i = 0; i < count; i++)
        within &= (uint64_t)positions[i] < (uint64_t)size;
    return within;
}

static PyObject *scatter_add(PyObject *self, arguments args, Py_ssize_t count)
{
    ARGUMENTS(4);
    WRITE(float, out, 0);
    READ(int64_t, positions, 1);
    READ(float, values, 2);
    double scale = PyFloat_AsDouble(args[3]);
    CHECK(!(scale == -1.0 && PyErr_Occurred()), "");
    CHECK(positions_length == values_length, "positions and values must have the same length");
    CHECK(all_within(positions, positions_length, out_length), "a position is out of range");
    UNLOCKED(ft_scatter_add(out, positions, values, positions_length, (float)scale));
    Py_RETURN_NONE;
}

static PyObject *scatter_signs(PyObject *self, arguments args, Py_ssize_t count)
{
    ARGUMENTS(4);
    WRITE(float, out, 0);
    READ(int64_t, positions, 1);
    READ(uint8_t, signs, 2);
    double step = PyFloat_AsDouble(args[3]);
    CHECK(!(step == -1.0 && PyErr_Occurred()), "");
    CHECK(positions_length == signs_length, "positions and signs must have the same length");
    CHECK(all_within(positions, positions_length, out_length), "a position is out of range");
    UNLOCKED(ft_scatter_signs(out, positions, signs, positions_length, (float)step));
    Py_RETURN_NONE;
}

static PyObject *apply_sign_counts(PyObject *self, arguments args, Py_ssize_t count)
{
    ARGUMENTS(4);
    WRITE(float, weights, 0);
    READ(float, base, 1);
    READ(int32_t, counts, 2);
    double step = PyFloat_AsDouble(args[3]);
    CHECK(!(step == -1.0 && PyErr_Occurred()), "");
    CHECK(weights_length == base_length && base_length == counts_length,
          "all vectors must have the same length");
    UNLOCKED(ft_apply_sign_counts(weights, base, counts, weights_length, step));
    Py_RETURN_NONE;
}

static PyObject *add_bits(PyObject *self, arguments args, Py_ssize_t count)
{
    ARGUMENTS(2);
    WRITE(uint64_t, lanes, 0);
    READ(uint8_t, bits, 1);
    CHECK(lanes_length == bits_length, "lanes and bits must have the same length");
    UNLOCKED(ft_add_bits(lanes, bits, bits_length));
    Py_RETURN_NONE;
}

static PyObject *add_lanes(PyObject *self, arguments args, Py_ssize_t count)
{
    ARGUMENTS(2);
    WRITE(int32_t, counts, 0);
    WRITE(uint64_t, lanes, 1);
    CHECK(lanes_length == (counts_length + 7) / 8, "lanes do not fit the counts");
    UNLOCKED(ft_add_lanes(counts, counts_length, lanes));
    Py_RETURN_NONE;
}

static int take_seed(PyObject *object, uint64_t *seed)
{
    unsigned long long value = PyLong_AsUnsignedLongLong(object);
    if (value == (unsigned long long)-1 && PyErr_Occurred())
        return -1;
    *seed = value;
    return 0;
}

static PyObject *sample_positions(PyObject *self, arguments args, Py_ssize_t count)
{
    ARGUMENTS(3);
    uint64_t seed;
    CHECK(take_seed(args[0], &seed) == 0, "");
    NUMBER(size, 1);
    WRITE(int64_t, positions, 2);
    CHECK(positions_length <= size, "more positions than the size");
    UNLOCKED(ft_sample_positions(seed, size, positions, positions_length));
    Py_RETURN_NONE;
}

static PyObject *random_signs(PyObject *self, arguments args, Py_ssize_t count)
{
    ARGUMENTS(3);
    uint64_t seed;
    CHECK(take_seed(args[0], &seed) == 0, "");
    NUMBER(first, 1);
    WRITE(float, signs, 2);
    UNLOCKED(ft_random_signs(seed, first, signs, signs_length));
    Py_RETURN_NONE;
}

static PyObject *rotate(PyObject *self, arguments args, Py_ssize_t count)
{
    ARGUMENTS(1);
    WRITE(float, x, 0);
    CHECK(x_length > 0 && (x_length & (x_length - 1)) == 0, "the length must be a power of two");
    UNLOCKED(ft_rotate(x, x_length));
    Py_RETURN_NONE;
}

static PyObject *sort_entries(PyObject *self, arguments args, Py_ssize_t count)
{
    ARGUMENTS(10);
    READ(int64_t, positions, 0);
    READ(float, values, 1);
    READ(int64_t, ends, 2);
    NUMBER(size, 3);
    WRITE(int64_t, out_positions, 4);
    WRITE(int32_t, out_updates, 5);
    WRITE(float, out_values, 6);
    WRITE(int32_t, order, 7);
    WRITE(int32_t, swap, 8);
    WRITE(int64_t, counters, 9);
    const int64_t n = positions_length;
    CHECK(values_length == n && out_positions_length == n && out_updates_length == n &&
              out_values_length == n && order_length == n && swap_length == n && n <= INT32_MAX,
          "all entries must have the same length");
    CHECK(counters_length >= FT_SORT_SCRATCH, "counters are too short");
    CHECK(size >= 1 || n == 0, "size must be at least 1");
    CHECK(all_within(positions, n, size), "a position is out of range");
    for (int64_t i = 0; i < ends_length; i++)
        CHECK(ends[i] >= (i ? ends[i - 1] : 0) && ends[i] <= n, "ends must ascend");
    CHECK(ends_length ? ends[ends_length - 1] == n : n == 0, "ends must cover all entries");
    UNLOCKED(ft_sort_entries(positions, values, n, ends, ends_length, size, out_positions,
                             out_updates, out_values, order, swap, counters));
    Py_RETURN_NONE;
}

static PyObject *count_distinct(PyObject *self, arguments args, Py_ssize_t count)
{
    ARGUMENTS(1);
    READ(int64_t, positions, 0);
    int64_t found;
    UNLOCKED(found = ft_count_distinct(positions, positions_length));
    return PyLong_FromLongLong(found);
}

static PyObject *measure_keys(PyObject *self, arguments args, Py_ssize_t count)
{
    ARGUMENTS(6);
    READ(int64_t, positions, 0);
    READ(int32_t, updates, 1);
    NUMBER(number, 2);
    NUMBER(key_width, 3);
    NUMBER(place_width, 4);
    NUMBER(cell_width, 5);
    CHECK(positions_length == updates_length, "positions and updates must have the same length");
    CHECK(key_width >= 0 && key_width <= 48 && place_width >= 0 && place_width <= 48 &&
              cell_width >= 0 && cell_width <= 48,
          "widths must be in [0, 48]");
    int64_t bits[3];
    UNLOCKED(ft_measure_keys(positions, updates, positions_length, number, (int)key_width,
                             (int)place_width, (int)cell_width, bits));
    return Py_BuildValue("(LLL)", (long long)bits[0], (long long)bits[1], (long long)bits[2]);
}

static PyObject *nest_keys(PyObject *self, arguments args, Py_ssize_t count)
{
    ARGUMENTS(5);
    READ(int64_t, positions, 0);
    READ(int32_t, updates, 1);
    NUMBER(number, 2);
    WRITE(int64_t, distinct, 3);
    WRITE(int64_t, cells, 4);
    CHECK(positions_length == updates_length && positions_length == cells_length,
          "positions, updates and cells must have the same length");
    CHECK(ft_count_distinct(positions, positions_length) <= distinct_length,
          "distinct is too short");
    UNLOCKED(ft_nest_keys(positions, updates, positions_length, number, distinct, cells));
    Py_RETURN_NONE;
}

static PyObject *split_keys(PyObject *self, arguments args, Py_ssize_t count)
{
    ARGUMENTS(4);
    READ(int64_t, keys, 0);
    NUMBER(number, 1);
    WRITE(int64_t, rows, 2);
    WRITE(int32_t, updates, 3);
    CHECK(number >= 1 && number <= INT32_MAX, "number must be at least 1");
    CHECK(keys_length == rows_length && keys_length == updates_length,
          "keys, rows and updates must have the same length");
    int64_t found;
    UNLOCKED(found = ft_split_keys(keys, keys_length, number, rows, updates));
    return PyLong_FromLongLong(found);
}

static PyObject *fill_ternary_values(PyObject *self, arguments args, Py_ssize_t count)
{
    ARGUMENTS(7);
    READ(int64_t, positions, 0);
    READ(int32_t, updates, 1);
    READ(uint8_t, signs, 2);
    READ(float, magnitudes, 3);
    READ(int64_t, ends, 4);
    WRITE(uint8_t, used, 5);
    WRITE(float, values, 6);
    const int64_t n = positions_length;
    CHECK(ends_length > 0 && magnitudes_length % ends_length == 0 &&
              used_length == magnitudes_length,
          "magnitudes must have one column per segment");
    const int64_t num_updates = magnitudes_length / ends_length;
    CHECK(updates_length == n && values_length == n && 8 * signs_length >= n,
          "positions, updates, signs and values do not fit together");
    CHECK(all_within(positions, n, ends[ends_length - 1]), "a position is out of range");
    for (int64_t i = 0; i < n; i++)
        CHECK((uint32_t)updates[i] < (uint64_t)num_updates, "an update is out of range");
    int valid;
    UNLOCKED(valid = ft_fill_ternary_values(positions, updates, n, signs, magnitudes, num_updates, ends,
                                     ends_length, used, values));
    return PyBool_FromLong(valid);
}

static PyObject *instruction_set(PyObject *self, PyObject *ignored)
{
    (void)self;
    (void)ignored;
    return PyUnicode_FromString(ft_instruction_set());
}

#define FUNCTION(name, function)                                                                  \
    {name, (PyCFunction)(void (*)(void))function, METH_FASTCALL, NULL}

static PyMethodDef functions[] = {
    FUNCTION("select_largest", select_largest),
    FUNCTION("first_reaching", first_reaching),
    FUNCTION("summarize", summarize),
    FUNCTION("encode_gaps", encode_gaps),
    FUNCTION("decode_gaps", decode_gaps),
    FUNCTION("adaptive_scratch", adaptive_scratch),
    FUNCTION("encode_adaptive", encode_adaptive),
    FUNCTION("decode_adaptive", decode_adaptive),
    FUNCTION("pack_levels", pack_levels),
    FUNCTION("unpack_levels", unpack_levels),
    FUNCTION("measure_levels", measure_levels),
    FUNCTION("encode_levels", encode_levels),
    FUNCTION("decode_levels", decode_levels),
    FUNCTION("scatter_add", scatter_add),
    FUNCTION("scatter_signs", scatter_signs),
    FUNCTION("apply_sign_counts", apply_sign_counts),
    FUNCTION("add_bits", add_bits),
    FUNCTION("add_lanes", add_lanes),
    FUNCTION("sample_positions", sample_positions),
    FUNCTION("random_signs", random_signs),
    FUNCTION("rotate", rotate),
    FUNCTION("sort_entries", sort_entries),
    FUNCTION("count_distinct", count_distinct),
    FUNCTION("measure_keys", measure_keys),
    FUNCTION("nest_keys", nest_keys),
    FUNCTION("split_keys", split_keys),
    FUNCTION("fill_ternary_values", fill_ternary_values),
    {"instruction_set", instruction_set, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "compiled", "Kernels of fedtern, compiled.", 0, functions, NULL, NULL,
    NULL, NULL,
};

PyMODINIT_FUNC PyInit_compiled(void)
{
    PyObject *made = PyModule_Create(&module);
    if (made && PyModule_AddStringConstant(made, "version", FT_VERSION) < 0) {
        Py_DECREF(made);
        return NULL;
    }
    return made;
}
