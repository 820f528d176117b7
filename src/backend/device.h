/* What a device module is: a shared object that computes the operations of ops.h on a device of its own.
 *
 * The program loads it at run time and never needs it. Module and program share plain data (tensor.h, batch.h, ops.h) and
 * the table below; neither calls a symbol of the other. The workers and the loading of files stay with the CPU backend; a
 * device adds memory and operations. The table that fill_ops() gets holds the CPU's.
 *
 *   memory      DEVICE_ONLY   what only kernels touch: weights, caches, states, scratch
 *               DEVICE_SHARED both sides read and write it under one address; what kernels wrote is there after sync
 *   inputs      arrays of ids and places that an op takes may lie anywhere in host memory and may be changed as soon as
 *               the call returns: the module copies what it has not seen yet
 *
 * Functions that can fail return NULL, or a sentence that stays valid until the next one. */
#pragma once

#include "backend/backend.h"

typedef struct Device Device;
typedef enum DeviceMemory { DEVICE_ONLY, DEVICE_SHARED } DeviceMemory;

enum { DEVICE_ABI = 4 };

typedef struct DeviceModule {
    int         abi;
    const char *name; /* "cuda" */

    const char *(*open)(Device **out, RowCounts *counts);
    void        (*close)(Device *d);
    const char *(*text)(const Device *d); /* "NVIDIA H200, sm_90" */
    void        (*memory)(const Device *d, size_t *available, size_t *total);
    void        (*fill_ops)(Ops *ops);
    void        (*sync)(Device *d);

    void *(*alloc)(Device *d, size_t bytes, DeviceMemory kind); /* zeroed; NULL: none left */
    size_t (*free)(Device *d, void *p); /* returns its bytes */
    void  (*upload)(Device *d, void *to, const void *from, size_t bytes);
    void  (*download)(Device *d, void *to, const void *from, size_t bytes); /* queued: there after sync. to: DEVICE_SHARED */

    /* Weights. The contract is the device's own: it may change the order of sums, never the types. put_rows takes rows of
     * the contract's input type, get_row gives float32. */
    Contract (*contract)(Contract c, int64_t n_in);
    size_t   (*weight_bytes)(int64_t n_out, int64_t n_in, const Contract *c);
    void     (*put_rows)(Device *d, const Weight *w, int64_t first, int64_t n, const void *rows);
    void     (*get_row)(Device *d, const Weight *w, int64_t row, float *out);

    /* A pass of the model on this batch. begin: true = it was done, by replaying what an equal pass had recorded; the
     * caller skips its operations. Otherwise they are queued (and perhaps recorded) until end. */
    bool (*pass_begin)(Device *d, const void *model, const Batch *batch);
    void (*pass_end)(Device *d);

    double (*read_bandwidth)(Device *d); /* bytes per second, measured */

    /* NULL, or why the device does not work any more: what was computed since is nothing, by ops that may do nothing. */
    const char *(*lost)(const Device *d);
} DeviceModule;

/* Keys of a bf16 cache that a device's attention sums in an order of its own (Numerics.attn_tile). */
enum { DEVICE_ATTENTION_TILE = 128 };

/* The module and device of a backend; NULL on a CPU. */
const DeviceModule *backend_module(const Backend *b, Device **device);
bool                backend_is_device(const Backend *b); /* NULL: not yet opened, counts as a CPU */

/* The one symbol of a module. */
const DeviceModule *tandem_device_module(void);
