/* The tensors a model is made of, and their way from a checkpoint into memory.
 *
 * A family declares its tensors once, in a WeightList. The memory plan, the check of the checkpoint's headers, the
 * loading, the dummy weights and the fingerprint all work from that list, so they cannot disagree about a name or
 * a shape.
 *
 *     weights_begin -> weights_scope, weights_matrix, weights_vector ... -> weights_check -> weights_load
 *                   -> weights_free */
#pragma once

#include "backend/backend.h"
#include "models/model.h"
#include "tensor/checkpoint.h"

enum { WEIGHT_NAME_BYTES = 128 };

/* What a vector goes through on its way to float32. */
typedef enum VectorUse {
    VECTOR_PLAIN,         /* as stored: bias, dt_bias, convolution */
    VECTOR_NORM,          /* as stored */
    VECTOR_NORM_PLUS_ONE, /* a zero-centred norm: 1 + w, added in float32 (in bf16 the sum would lose most of w) */
    VECTOR_NEG_EXP,       /* A_log: -exp(w) */
} VectorUse;

typedef struct WeightItem {
    char      name[WEIGHT_NAME_BYTES]; /* in the checkpoint */
    Weight   *matrix;                  /* where it goes: a matrix of a linear layer or embedding ... */
    float   **vector;                  /* ... or float32 numbers; the other one is NULL */
    VectorUse use;                     /* of a vector */
    Contract  contract;                /* of a matrix */
    QuantFormat quantize;              /* what its plain numbers are rounded to first; QUANT_NONE: nothing */
    bool      is_row_parallel;
    int       n_dims;
    int64_t   shape[3];
} WeightItem;

typedef struct WeightList {
    MathMode     mode;
    QuantFormat  quantize; /* --quantization: set between weights_begin and weights_check */
    QuantFormat  declared; /* what dummy weights of the layers are stored in; likewise */
    char         scope[WEIGHT_NAME_BYTES];
    WeightItem  *items;
    int          n, capacity;
    bool         decodes; /* its kernels know plain numbers only: a device's */
    bool         failed;  /* no memory for the list itself: weights_check says so */
    Backend     *backend; /* of the memory below, NULL before loading */
    void        *vectors; /* all vectors, one piece of memory */
    uint64_t     hash;    /* of names, shapes, contracts and every byte that was loaded */
} WeightList;

/* ---- declaring ---- */

/* backend: whose kernels will read them; NULL: the CPU's. */
void weights_begin(WeightList *list, MathMode mode, const Backend *backend);

/* Put in front of the names that follow: "model.layers.3.". */
void weights_scope(WeightList *list, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* [n_out, n_in] into *out. row_parallel: its K is cut over ranks, so it is summed in parts (contract.h). */
void weights_matrix(WeightList *list, Weight *out, int64_t n_out, int64_t n_in, const char *name);
void weights_row_parallel(WeightList *list, Weight *out, int64_t n_out, int64_t n_in, const char *name);

/* [n] into float32 numbers at *out. */
void weights_vector(WeightList *list, float **out, VectorUse use, int64_t n, const char *name);
/* [channels, 1, taps], the layout of a depthwise convolution, into [channels][taps] float32. */
void weights_conv(WeightList *list, float **out, int64_t channels, int64_t taps, const char *name);
/* [a, b, c] into float32 numbers at *out, in this order. */
void weights_array(WeightList *list, float **out, int64_t a, int64_t b, int64_t c, const char *name);

/* ---- using ---- */

/* The layout that --quantization and dummy weights give a matrix: FP8 with a scale for each output, NVFP4 as ModelOpt writes it,
 * MXFP4, integers of four bits in groups of 128. Geometry only: no pointers. */
QuantMatrix weights_quantized(QuantFormat format, int64_t n_out, int64_t n_in);

/* Memory that loading will take. */
size_t weights_bytes(const WeightList *list);
/* The same in whole pages: what it holds of main memory. */
size_t weights_held(const WeightList *list);

/* "model." or "model.language_model.", whichever the checkpoint uses; an error when neither has an embedding. */
Status weights_find_prefix(ModelConfig *config, const Checkpoint *file, Error *err);

/* Every declared tensor is there with exactly its shape and a type we read, and a matrix whose stored blocks kernels can
 * compute with gets their contract: it is kept as it is stored. Others are decoded when they are loaded. With
 * list->quantize the linears of the layers must be plain numbers and get that format's contract, where its blocks fit. Every other tensor is one that this
 * family may carry without our using it. The error names the tensor. From the headers alone; file NULL (dummy
 * weights): only that the list could be made. */
Status weights_check(WeightList *list, const ModelConfig *config, const Checkpoint *file, Error *err);

/* The same for a module that shares its checkpoint with a model: only tensors whose name begins with `prefix` are looked
 * at, and none of them may be left over. */
Status weights_check_part(WeightList *list, const char *prefix, const ModelConfig *config,
                          const Checkpoint *file, Error *err);

/* Takes memory and fills it, all workers at once, each row converted once from a small staging buffer into its final
 * place. file NULL: dummy weights from options->dummy_seed instead. After an error weights_free has still to be
 * called. */
Status weights_load(WeightList *list, const Checkpoint *file, Backend *backend, const ModelOptions *options,
                    Error *err);

void weights_free(WeightList *list);
