/* A batch for kernel checks: sequences of any kind over paged caches and state slots.
 *
 * Slots and blocks are scattered; table entries behind a sequence's last block hold nonsense, slots that no
 * sequence uses exist, all caches begin as NaN. So a kernel that reads what it must not read shows. */
#pragma once

#include "check.h"

enum { SCENE_MAX_SEQS = 8 };

typedef enum TreeShape { TREE_CHAIN, TREE_STAR, TREE_BINARY, TREE_RANDOM, TREE_BUSHY, TREE_N_SHAPES } TreeShape;

typedef struct SceneSeq {
    int32_t   n_committed, n_rows;
    bool      certain;
    TreeShape shape; /* of an uncertain one */
} SceneSeq;

typedef struct Scene {
    Batch    batch;
    BatchSeq seqs[SCENE_MAX_SEQS + 2]; /* padding behind the real ones, with and without rows */
    int32_t  n_seqs;                   /* real ones */
    int32_t  n_slots, n_blocks, block_size, max_blocks;
    int32_t *block_table, *store, *parent, *path, *index, *seq, *rope;
} Scene;

/* Uncertain sequences first. Adds n_padding rows at the end. Lives until check_done(). */
void scene_open(Scene *s, Check *c, const SceneSeq *seqs, int n_seqs, int32_t block_size, int32_t n_padding);

/* 1 .. 5 sequences of random kinds and sizes. */
void scene_open_random(Scene *s, Check *c, int32_t max_committed, int32_t max_rows, int32_t block_size);

/* Entry of position j as `row` sees it (j <= index[row]). */
int32_t scene_store(const Scene *s, int32_t row, int32_t j);

/* Rows from the anchor (or the first row) down to `row`; returns their number. */
int32_t scene_path(const Scene *s, int32_t row, int32_t *rows);

/* Depth of a row below the committed tokens; the anchor has 0. */
int32_t scene_depth(const Scene *s, int32_t row);

/* The sequence's row at the end of a random path that starts at its first row. */
int32_t scene_random_leaf(const Scene *s, Check *c, int32_t seq);
