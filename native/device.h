/*
 * device.h: a client of a fedtern federation for microcontrollers.
 *
 * C99, no allocation, no I/O, no global state. The two files device.h and device.c are complete:
 * add them to a firmware. docs/format.md defines the messages; any fedtern server understands
 * this client.
 *
 * A client keeps a copy of the server's weights, bit for bit, and sends what it learns on top of
 * them as compressed uploads:
 *
 *     ft_device client = {.client_id = 7, .size = N, .method = FT_DEVICE_STC, .p_up = 1.0 / 400,
 *                         .terms = {...}, .weights = weights, .residual = residual,
 *                         .upload = upload, .upload_room = sizeof upload};
 *     ft_device_start(&client, "my-federation", 13);
 *     for (;;) {
 *         ... wait for a message from the server ...
 *         int code = ft_device_receive(&client, message, length, &event);
 *         if (code == FT_DEVICE_MISSED_ROUNDS)
 *             ... ask the server for a catch-up from client.round ...
 *         else if (code == FT_DEVICE_OK && event.invited == 1)
 *             ... train, ft_device_send_delta(&client, delta), publish ft_device_pending() ...
 *     }
 *
 * Memory
 *   The caller provides all vectors and buffers. Besides them, the library needs less than 2 kB of
 *   stack. Messages are read where they are, byte by byte, without alignment.
 *
 * Safety
 *   A message is checked completely before anything of it is applied. A function that returns
 *   anything but FT_DEVICE_OK has changed nothing (except `event`). No message makes the library
 *   read or write outside of the buffers.
 *
 * Arithmetic
 *   Weights equal the server's bit for bit. Compile with -ffp-contract=off and without -ffast-math,
 *   and let the processor round to nearest and keep subnormal numbers (the default everywhere).
 */
#ifndef FEDTERN_DEVICE_H
#define FEDTERN_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Version of this interface. The major number changes if a caller has to change. */
#define FT_DEVICE_VERSION_MAJOR 1
#define FT_DEVICE_VERSION_MINOR 2

/* Version of the messages (docs/format.md). */
#define FT_DEVICE_FORMAT 1

/* Define these as 0 to leave out the code of methods that a firmware does not use. */
#ifndef FT_DEVICE_WITH_STC
#define FT_DEVICE_WITH_STC 1
#endif
#ifndef FT_DEVICE_WITH_SIGNSGD
#define FT_DEVICE_WITH_SIGNSGD 1
#endif
#ifndef FT_DEVICE_WITH_DENSE
#define FT_DEVICE_WITH_DENSE 1
#endif

/*
 * Define this as 1 to keep the residual in 2 bytes per parameter instead of 4. Values are rounded to
 * the nearest binary16 number, and to at most 65504. The weights stay equal to the server's bit for
 * bit; docs/how-to/devices.md has the effect on the accuracy.
 */
#ifndef FT_DEVICE_FLOAT16_RESIDUAL
#define FT_DEVICE_FLOAT16_RESIDUAL 0
#endif

#if FT_DEVICE_FLOAT16_RESIDUAL
typedef uint16_t ft_device_residual; /* the bits of a binary16 number */
#else
typedef float ft_device_residual;
#endif

/* Largest number of parameters. */
#define FT_DEVICE_MAX_SIZE ((uint32_t)1 << 25)

/* Methods, by the codec of their uploads and broadcasts. */
enum ft_device_method {
    FT_DEVICE_DENSE = 1,  /* sgd and fedavg */
    FT_DEVICE_STC = 3,    /* stc with scope "model" */
    FT_DEVICE_SIGNSGD = 5 /* signsgd */
};

/* Return codes. The names in parentheses are the exceptions of the Python client. */
enum ft_device_code {
    FT_DEVICE_OK = 0,
    /* The bytes are damaged or break a rule of the format (DecodeError). */
    FT_DEVICE_BAD_MESSAGE = -1,
    /* The message has another version of the format (DecodeError). */
    FT_DEVICE_OTHER_VERSION = -2,
    /* The sender has a model of another layout (RemoteProtocolError). */
    FT_DEVICE_OTHER_LAYOUT = -3,
    /* The sender uses another method or other parameters (RemoteProtocolError). */
    FT_DEVICE_OTHER_METHOD = -4,
    /* The message belongs to another federation, to other initial weights, or one of the two sides
     * went back to an old state (RemoteProtocolError). Join again with ft_device_join. */
    FT_DEVICE_OTHER_HISTORY = -5,
    /* The message starts from another round than the client's (MissedRounds). Ask the server for a
     * catch-up from the client's round. `event->leads_to` is the round of the message. */
    FT_DEVICE_MISSED_ROUNDS = -6,
    /* The message may be valid, but this client has no code or memory for it. */
    FT_DEVICE_UNSUPPORTED = -7,
    /* This round's upload has already been made (LocalProtocolError). */
    FT_DEVICE_ALREADY_SENT = -8,
    /* The client has no weights yet: receive a catch-up first (LocalProtocolError). */
    FT_DEVICE_NO_WEIGHTS = -9,
    /* A value is NaN, infinite or too large to be sent (NonFiniteError). */
    FT_DEVICE_NOT_FINITE = -10,
    /* The upload buffer is too small; see ft_device_upload_room. */
    FT_DEVICE_NO_ROOM = -11,
    /* A field of the client or an argument is invalid or missing. */
    FT_DEVICE_BAD_ARGUMENT = -12,
    /* The catch-up is for another client (MisdeliveredMessage). */
    FT_DEVICE_MISDELIVERED = -13,
    /* The server has counted an upload to a later round than the client's: the client was restored
     * from an old copy (RemoteProtocolError). Join again with ft_device_join. */
    FT_DEVICE_OLD_COPY = -14
};

/* How a message took the client from one round to a later one. */
enum ft_device_how {
    FT_DEVICE_NOTHING = 0, /* the message was already known */
    FT_DEVICE_NOTICE,      /* notice of a cohort */
    FT_DEVICE_BROADCAST,   /* broadcast */
    FT_DEVICE_REPLAY,      /* replayed broadcasts */
    FT_DEVICE_SUM,         /* sum of broadcasts */
    FT_DEVICE_MODEL,       /* whole model */
    FT_DEVICE_INITIAL      /* initial model and broadcasts */
};

/* A tensor as rows: its first axis by all others. A tensor with one axis or none has one row. */
typedef struct ft_device_tensor {
    uint32_t rows;
    uint32_t columns;
} ft_device_tensor;

/* What a message from the server did to the client. */
typedef struct ft_device_event {
    int64_t since;    /* the client's round before the message */
    int64_t round;    /* the client's round after it */
    int64_t leads_to; /* the round that the message leads to */
    uint8_t how;      /* one of enum ft_device_how */
    int8_t counted;   /* 1 the pending upload counted, 0 it did not, -1 not known or none pending */
    int8_t invited;   /* 1 the client may upload to round leads_to, 0 it may not, -1 not said */
} ft_device_event;

/*
 * A client. Set the first group of fields, then call ft_device_start or ft_device_join. The second
 * group belongs to the library; `round` and `stamp` may be read.
 *
 * To keep a client over a restart, save the whole structure, the vectors and the upload buffer, and
 * restore them with the pointers set anew. Save them together: after every call that returned
 * FT_DEVICE_OK or not at all.
 */
typedef struct ft_device {
    uint64_t client_id; /* the id by which the server knows this client */
    double p_up;        /* stc: share of the parameters in an upload, in (0, 1] */
    uint64_t seed;      /* signsgd: random seed for the signs of zeros */
    float *weights;     /* size values: the model; only the library writes to it */
    ft_device_residual *residual; /* stc, dense: size values: the part of all deltas not sent yet */
    float *base;        /* signsgd: size values */
    int32_t *counts;    /* signsgd: size values */
    uint8_t *upload;    /* the pending upload */
    size_t upload_room; /* length of `upload`; see ft_device_upload_room */
    uint32_t size;      /* number of parameters, 1 to FT_DEVICE_MAX_SIZE */
    uint8_t method;     /* one of enum ft_device_method */
    uint8_t terms[6];   /* digests of layout and method: `Terms(layout, method).digest` in Python */
    /* The tensors of the model, which may be constants in flash. Needed only to join without weights
     * a federation whose server has initial="int8"; else NULL. */
    const ft_device_tensor *tensors;
    uint32_t num_tensors;

    uint8_t stamp[3];      /* stamp of the history that the client has followed */
    int64_t round;         /* the client's round; -1 without weights */
    size_t pending;        /* length of the pending upload, 0 for none */
    uint32_t sign_updates; /* sign updates counted since `base`, 0 without a base */
    float step;            /* their step size */
} ft_device;

/*
 * Length that an upload buffer needs for every possible upload; 0 if an argument is invalid.
 * `p_up` is used by FT_DEVICE_STC only.
 */
size_t ft_device_upload_room(int method, uint32_t size, double p_up);

/*
 * Begin at round 0, with the federation's initial model in `weights`. Sets the residual to zero.
 *
 *   federation   the federation's name in UTF-8, `length` bytes; may be NULL if length is 0
 *
 * Returns FT_DEVICE_OK, FT_DEVICE_BAD_ARGUMENT, FT_DEVICE_UNSUPPORTED (the method is not compiled
 * in) or FT_DEVICE_NOT_FINITE (a weight).
 */
int ft_device_start(ft_device *client, const char *federation, size_t length);

/*
 * Begin without weights, at round -1. The first message to receive is a catch-up, which holds the
 * whole model. Sets the residual to zero.
 */
int ft_device_join(ft_device *client);

/*
 * Apply a message from the server: a broadcast, a catch-up or a notice of a cohort.
 *
 *   event   receives what happened; if the result is not FT_DEVICE_OK, only `since` and `round` and
 *           after FT_DEVICE_MISSED_ROUNDS `leads_to` have a meaning
 *
 * If an upload is pending and the message says that it did not count, its update goes back to the
 * residual (signsgd has none and forgets it).
 */
int ft_device_receive(ft_device *client, const uint8_t *data, size_t length,
                      ft_device_event *event);

/*
 * Compress a change of the weights and make this round's upload of it. The change stays in the
 * residual as far as the upload does not hold it.
 *
 *   delta   the new weights minus `weights`. NULL: the caller has added the change to `residual`
 *           itself, which saves a vector (not for signsgd)
 */
int ft_device_send_delta(ft_device *client, const float *delta);

/* Like ft_device_send_delta, given the weights after training. */
int ft_device_send(ft_device *client, const float *new_weights);

/*
 * The unacknowledged upload of this round and its length, to be sent (again if it may be lost).
 * NULL if there is none. The bytes stay valid until the next call of ft_device_receive.
 */
const uint8_t *ft_device_pending(const ft_device *client, size_t *length);

/* A short English description of a return code. */
const char *ft_device_describe(int code);

#ifdef __cplusplus
}
#endif

#endif /* FEDTERN_DEVICE_H */
