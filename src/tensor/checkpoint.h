/* The tensors of a checkpoint under the names that models use (Hugging Face's), whatever the container: a directory of
 * safetensors, one such file, or a .gguf file.
 *
 * What a container spreads or turns is put together here: codes and scales of one matrix are one tensor, called
 * "....weight"; GGUF names are translated; where GGUF has rows or inputs in another order, `rows` and `columns` say
 * which.
 * All is checked at open from headers alone (numbers of scale tensors are checked when they are read). Read-only after
 * open: any thread. */
#pragma once

#include "tensor/gguf.h"
#include "tensor/quant.h"
#include "tensor/safetensors.h"

typedef struct CheckpointPart {
    int      file;          /* which shard */
    uint64_t offset, bytes; /* absolute place in it; 0 bytes: there is no such part */
} CheckpointPart;

/* Our order against the stored one. From `first` on, things come in groups of a * b units of `unit` things; unit (i, j)
 * of ours, i < a and j < b, lies where (j, i) would lie if a and b were exchanged. a == 0: both orders are the same. */
typedef struct CheckpointOrder {
    int64_t first, a, b, unit;
} CheckpointOrder;

/* Where our thing number i is stored. */
int64_t checkpoint_stored(const CheckpointOrder *o, int64_t i);

typedef struct CheckpointTensor {
    const char     *name; /* borrowed from the Checkpoint */
    const char     *type; /* for messages: "BF16", "Q4_1", "NVFP4" */
    int             n_dims;
    int64_t         shape[SAFETENSORS_MAX_DIMS]; /* slowest first; a matrix is [n_out, n_in] */
    QuantMatrix     stored; /* format and geometry, no pointers; QUANT_NONE = a type that nothing here computes with.
                             * n_in: the last dimension; n_out: all others */
    CheckpointPart  codes, scales, zeros, groups;
    CheckpointOrder rows, columns;
    bool            is_final; /* zero-centred norms have their 1 added, A_log is -exp(A_log) already: GGUF */
} CheckpointTensor;

typedef struct Checkpoint Checkpoint;

Status checkpoint_open(Checkpoint **out, const char *path, Error *err);
void   checkpoint_close(Checkpoint *c);

const char             *checkpoint_path(const Checkpoint *c);
const Gguf             *checkpoint_gguf(const Checkpoint *c); /* for its metadata; NULL when it is safetensors */
int                     checkpoint_count(const Checkpoint *c);
const CheckpointTensor *checkpoint_at(const Checkpoint *c, int i); /* in the order of files and of data inside them */
const CheckpointTensor *checkpoint_find(const Checkpoint *c, const char *name); /* NULL: absent */

/* GPTQ zero points of this checkpoint are stored as they are ("checkpoint_format": "gptq_v2"); otherwise one too
 * small. */
void checkpoint_set_gptq_v2(Checkpoint *c);

/* Bytes [first, first + n) of a part, past the page cache, into staging that begins on a page (DATA_FILE_PAGE) and has
 * checkpoint_stage_room(n) bytes; *at is where in it they are. */
size_t checkpoint_stage_room(size_t n);
Status checkpoint_stage(const Checkpoint *c, const CheckpointPart *part, uint64_t first, size_t n, void *staging,
                        void **at, Error *err);

/* Likewise the codes of our rows [first, first + n), one behind the other, as they are stored (columns in the stored order).
 * Formats whose rows lie together (quant_geometry()->in_rows). */
size_t checkpoint_stage_rows_room(const CheckpointTensor *t, int64_t n);
Status checkpoint_stage_rows(const Checkpoint *c, const CheckpointTensor *t, int64_t first, int64_t n, void *staging,
                             void **at, Error *err);

/* A stored matrix is loaded in bands, so that it never exists twice: rows with what belongs to them, or, of a format whose
 * inputs are outermost, inputs of all rows. A band begins at a multiple of checkpoint_band(); n is that, or what is left. No
 * band parts a group that shares scales unless it lies inside one. */
int64_t checkpoint_bands_of(const CheckpointTensor *t); /* rows or inputs that there are */
int64_t checkpoint_band(const CheckpointTensor *t, size_t bytes); /* of them in a band of about so many bytes */
size_t  checkpoint_band_bytes(const CheckpointTensor *t, int64_t n);
size_t  checkpoint_band_room(const CheckpointTensor *t, int64_t n); /* staging, which begins on a page */
/* What is in staging then: a view, without `groups` and unchecked. */
typedef struct CheckpointBand {
    QuantMatrix stored;
    size_t      code_bytes, scale_bytes, zero_bytes;
} CheckpointBand;
Status checkpoint_stage_band(const Checkpoint *c, const CheckpointTensor *t, int64_t first, int64_t n, void *staging,
                             CheckpointBand *band, Error *err);

/* Our rows [first, first + n) as float32, columns in our order too, everything that quant_check() refuses refused.
 * Reads what it needs into memory of its own; AWQ and GPTQ need all of it each time, so ask for all rows of those. */
Status checkpoint_decode_rows(const Checkpoint *c, const CheckpointTensor *t, int64_t first, int64_t n, float *out,
                              Error *err);
