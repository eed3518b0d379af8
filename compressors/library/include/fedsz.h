/* libfedsz: reads, writes and inspects fedsz streams (docs/format.md), in C99.
 *
 * A stream holds named tensors. Those that may be lossy are coded by `uniform`, so that no element
 * moves by more than a bound; all others come back bit by bit. Streams are those of the Python
 * package, byte by byte (docs/guides/c-library.md has the exceptions).
 *
 * Units: sizes and lengths are in bytes unless they are called counts; bounds are in the unit of
 * the tensor. Elements are in C order and little-endian.
 *
 * Ownership: a function copies names, shapes and settings, and keeps no pointer to elements, but
 * for fedsz_reference_create() and fedsz_reader_open(). What a `create` or `open` returned goes
 * back to its `destroy` or `close`.
 *
 * Alignment: elements lie at a multiple of their size: 8 for float64, 2 for halves, and so on. A
 * workspace and a stream may lie anywhere.
 *
 * Threads: there is no state beside the objects. Different objects may be used at the same time;
 * one object by one thread at a time. Nothing is thrown and no signal is raised.
 *
 * Errors: each function that can fail returns a status and says more in `*error`, unless that is
 * NULL. Then outputs are unspecified, and objects are as before. */
#ifndef FEDSZ_H
#define FEDSZ_H

#include <stddef.h>
#include <stdint.h>

#define FEDSZ_VERSION_MAJOR 0
#define FEDSZ_VERSION_MINOR 1
#define FEDSZ_VERSION_PATCH 0

#if defined(_WIN32) && defined(FEDSZ_SHARED)
#ifdef FEDSZ_BUILDING
#define FEDSZ_API __declspec(dllexport)
#else
#define FEDSZ_API __declspec(dllimport)
#endif
#elif defined(__GNUC__)
#define FEDSZ_API __attribute__((visibility("default")))
#else
#define FEDSZ_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef enum fedsz_status {
    FEDSZ_OK = 0,
    FEDSZ_ERROR_ARGUMENT = 1,    /* a NULL, a misaligned pointer, a number out of range */
    FEDSZ_ERROR_MEMORY = 2,      /* the heap or the workspace has no more */
    FEDSZ_ERROR_ROOM = 3,        /* the caller's buffer is too small for the result */
    FEDSZ_ERROR_CORRUPT = 4,     /* the bytes are not a stream, or no longer are */
    FEDSZ_ERROR_TRUNCATED = 5,   /* they end too early */
    FEDSZ_ERROR_CHECKSUM = 6,    /* they changed on the way */
    FEDSZ_ERROR_UNSUPPORTED = 7, /* a version or feature that this release does not know */
    FEDSZ_ERROR_LIMIT = 8,       /* they ask for more than the limits allow */
    FEDSZ_ERROR_REFERENCE = 9,   /* differences from a model that is not at hand */
    FEDSZ_ERROR_UNAVAILABLE = 10 /* a codec that this build of the library does not have */
} fedsz_status;

typedef struct fedsz_error {
    fedsz_status status;
    uint64_t offset;   /* where in the stream it was noticed; 0 if not in one */
    char message[200]; /* one line of UTF-8, cut off if need be */
} fedsz_error;

/* Numbers are those of the format. */
typedef enum fedsz_dtype {
    FEDSZ_FLOAT32 = 0,
    FEDSZ_FLOAT64 = 1,
    FEDSZ_FLOAT16 = 2,
    FEDSZ_BFLOAT16 = 3,
    FEDSZ_BOOL = 4, /* bytes of 0 or 1 */
    FEDSZ_INT8 = 5,
    FEDSZ_INT16 = 6,
    FEDSZ_INT32 = 7,
    FEDSZ_INT64 = 8,
    FEDSZ_UINT8 = 9,
    FEDSZ_UINT16 = 10,
    FEDSZ_UINT32 = 11,
    FEDSZ_UINT64 = 12,
    FEDSZ_COMPLEX64 = 13,
    FEDSZ_COMPLEX128 = 14,
    FEDSZ_FLOAT8_E4M3FN = 15,
    FEDSZ_FLOAT8_E5M2 = 16,
    FEDSZ_FLOAT8_E4M3FNUZ = 17,
    FEDSZ_FLOAT8_E5M2FNUZ = 18
} fedsz_dtype;

/* Bytes of an element; 0 for a dtype that there is not. */
FEDSZ_API size_t fedsz_dtype_size(fedsz_dtype dtype);

#define FEDSZ_MAX_DIMENSIONS 64

typedef struct fedsz_tensor {
    const char* name;   /* UTF-8, unique in its stream */
    size_t name_length; /* bytes, without a terminating 0, which there need not be */
    fedsz_dtype dtype;
    const uint64_t* shape; /* outermost dimension first; NULL for a scalar */
    size_t dimensions;     /* at most FEDSZ_MAX_DIMENSIONS */
} fedsz_tensor;

/* Bytes of a tensor's elements; SIZE_MAX for one that streams do not have. */
FEDSZ_API size_t fedsz_tensor_size(const fedsz_tensor* tensor);

/* The version of the library, such as "0.1.0", and what this build of it has, such as
 * "decoder threads zlib zstd". */
FEDSZ_API const char* fedsz_version(void);
FEDSZ_API const char* fedsz_features(void);

/* -------------------------------------------------------------- the model that both sides hold */

typedef struct fedsz_reference fedsz_reference;

/* A model that others are coded as differences from. `data[i]` has the elements of `tensors[i]`. It
 * is read here, for its digest, and whenever the reference is used: it must neither move nor change
 * until fedsz_reference_destroy(). */
FEDSZ_API fedsz_status fedsz_reference_create(const fedsz_tensor* tensors, const void* const* data,
                                              size_t count, fedsz_reference** reference,
                                              fedsz_error* error);
FEDSZ_API void fedsz_reference_destroy(fedsz_reference* reference); /* NULL is nothing to do */

/* Its digest, as streams name it. */
FEDSZ_API void fedsz_reference_digest(const fedsz_reference* reference, uint8_t digest[16]);

/* ----------------------------------------------------------------------------------- writing */

typedef enum fedsz_bound_kind {
    FEDSZ_BOUND_ABS = 0, /* the bound itself */
    FEDSZ_BOUND_REL = 1, /* times greatest - least element of each tensor; below 1 */
    FEDSZ_BOUND_STD = 2  /* times the standard deviation of each tensor, or of its difference */
} fedsz_bound_kind;

typedef enum fedsz_lossless { /* numbers are those of the format */
                              FEDSZ_RAW = 0,
                              FEDSZ_ZSTD = 2,
                              FEDSZ_ZLIB = 3,
                              FEDSZ_GZIP = 4
} fedsz_lossless;

/* Which tensors may be lossy: of float32, float64, float16 or bfloat16, with more elements than the
 * threshold, and */
typedef enum fedsz_rule {
    FEDSZ_RULE_SHAPE = 0, /* neither statistics of BatchNorm nor a vector with a number as name */
    FEDSZ_RULE_PAPER = 1, /* with "weight" in the name */
    FEDSZ_RULE_NDIM = 2,  /* of two dimensions or more */
    FEDSZ_RULE_PARAMETERS = 3 /* no statistics of BatchNorm */
} fedsz_rule;

typedef struct fedsz_settings {
    fedsz_bound_kind bound_kind;
    double bound;            /* finite, above 0 */
    unsigned effort;         /* of `uniform`: 0 (fastest) to 9 (smallest) */
    unsigned threads;        /* 1 to 1024, at most; 1 with a workspace. Decides nothing but time */
    fedsz_lossless lossless; /* for all that may not be lossy */
    int lossless_level;      /* zstd 1 to 22, zlib and gzip 0 to 9 */
    fedsz_rule rule;
    uint64_t threshold;               /* elements */
    const fedsz_reference* reference; /* that differences are coded from, or NULL. It has all
                                         tensors, and outlives the writer */
    int feedback;           /* whether tensors come with what earlier rounds left out of them */
    double residual_weight; /* what that is multiplied with; finite */
    void* workspace;        /* all memory of the writer, itself too; or NULL, for the heap */
    size_t workspace_size;
} fedsz_settings;

/* rel 0.01, effort 5, one thread, the first of zstd:3, zlib:6 and raw that this build has, rule
 * SHAPE, threshold 1024, no reference, no feedback, weight 1, the heap. */
FEDSZ_API void fedsz_settings_init(fedsz_settings* settings);

/* Bytes of a workspace in which a writer with these settings can write these tensors, whatever
 * their values; SIZE_MAX for tensors that it cannot take. It may use less. */
FEDSZ_API size_t fedsz_encoder_workspace(const fedsz_settings* settings,
                                         const fedsz_tensor* tensors, size_t count);

typedef struct fedsz_writer fedsz_writer;

FEDSZ_API fedsz_status fedsz_writer_create(const fedsz_settings* settings, fedsz_writer** writer,
                                           fedsz_error* error);
FEDSZ_API void fedsz_writer_destroy(fedsz_writer* writer); /* NULL is nothing to do */

/* What became of a tensor. */
typedef struct fedsz_written {
    int lossy;
    double bound;     /* absolute, that holds for each element; 0 if lossless */
    double max_error; /* the largest error, at most the bound; 0 if lossless */
    size_t size;      /* of its payload; 0 if it shares one with tensors that are still to come */
} fedsz_written;

/* Codes a tensor.
 *
 * residual: with feedback, what earlier rounds left out: as many elements of the tensor's dtype, or
 * NULL for nothing. left: with feedback, where to put what this round leaves out, in memory of its
 * own; or NULL. It is all 0 for a tensor that arrives exactly, or has a NaN or an infinity. Only
 * tensors of dtypes that may be lossy have either.
 * written: may be NULL.
 *
 * If it fails, nothing has been added, and what is at `left` is unspecified. */
FEDSZ_API fedsz_status fedsz_writer_add(fedsz_writer* writer, const fedsz_tensor* tensor,
                                        const void* data, const void* residual, void* left,
                                        fedsz_written* written, fedsz_error* error);

/* Ends the stream and says how long it is. Nothing can be added from then on. */
FEDSZ_API fedsz_status fedsz_writer_finish(fedsz_writer* writer, size_t* size, fedsz_error* error);

/* Copies a stream that has ended to a buffer of `room` bytes. */
FEDSZ_API fedsz_status fedsz_writer_copy(const fedsz_writer* writer, void* stream, size_t room,
                                         fedsz_error* error);

/* Gives a stream that has ended to `sink`, piece by piece, for as long as that returns 0; returns
 * what it returned last. */
typedef int (*fedsz_sink)(void* context, const void* piece, size_t size);
FEDSZ_API int fedsz_writer_send(const fedsz_writer* writer, fedsz_sink sink, void* context);

/* ----------------------------------------------------------------------------------- reading */

/* How much a stream may ask for before it is refused. */
typedef struct fedsz_limits {
    uint64_t decoded_bytes; /* of all tensors together, */
    uint64_t expansion;     /* or this many times the length of the stream, if that is more */
    uint64_t header_bytes;  /* of the inflated header */
    uint64_t tensors;       /* their count */
    uint64_t tensor_bytes; /* of the stream, that each tensor must take if there are more than 8192;
                              the header may then have 192 for each tensor. 0 asks for nothing */
} fedsz_limits;

/* 1 GiB, 1024, 64 MiB, 2^20, 128. */
FEDSZ_API void fedsz_limits_init(fedsz_limits* limits);

typedef struct fedsz_reader fedsz_reader;

/* Reads a stream's header and checks it: no payload is looked at. A stream with chains of methods
 * (version 3) is FEDSZ_ERROR_UNSUPPORTED. limits may be NULL, for those of
 * fedsz_limits_init(). The stream must neither move nor change until fedsz_reader_close(). If a
 * payload changes all the same, what is decoded is an error or other elements, and nothing worse.
 */
FEDSZ_API fedsz_status fedsz_reader_open(const void* stream, size_t size,
                                         const fedsz_limits* limits, fedsz_reader** reader,
                                         fedsz_error* error);
FEDSZ_API void fedsz_reader_close(fedsz_reader* reader); /* NULL is nothing to do */

/* How many tensors there are. */
FEDSZ_API size_t fedsz_reader_count(const fedsz_reader* reader);

typedef enum fedsz_transform {
    FEDSZ_VALUES = 0,     /* the values themselves */
    FEDSZ_DIFFERENCE = 1, /* differences from a reference */
    FEDSZ_BITS = 2        /* differences of bits */
} fedsz_transform;

typedef struct fedsz_info {
    fedsz_tensor tensor; /* its name and shape are the reader's: until it is closed */
    size_t size;         /* decoded */
    const char* codec;   /* its name, not NUL-terminated: */
    size_t codec_length;
    fedsz_transform transform;
    int lossy;
    double bound;          /* absolute; 0 if lossless */
    size_t payload;        /* its number: small lossless tensors share one */
    size_t payload_offset; /* in the stream */
    size_t payload_size;
} fedsz_info;

/* What the header says of tensor `index`. */
FEDSZ_API fedsz_status fedsz_reader_info(const fedsz_reader* reader, size_t index, fedsz_info* info,
                                         fedsz_error* error);

/* The digest of the model that differences refer to; returns 0 if there are none. */
FEDSZ_API int fedsz_reader_reference(const fedsz_reader* reader, uint8_t digest[16]);

/* The index of a tensor; SIZE_MAX if there is none of that name. */
FEDSZ_API size_t fedsz_reader_find(const fedsz_reader* reader, const char* name,
                                   size_t name_length);

/* Decodes tensor `index` to `elements`, which has exactly info.size bytes. reference: what
 * differences are added to; NULL for a stream without any. */
FEDSZ_API fedsz_status fedsz_reader_decode(fedsz_reader* reader, size_t index,
                                           const fedsz_reference* reference, void* elements,
                                           size_t size, fedsz_error* error);

#ifdef __cplusplus
}
#endif

#endif
