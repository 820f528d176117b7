/* A table of log-milliseconds by rows and concurrency, and one drift for all of it.
 *
 *     log ms(rows, sequences) = drift + cell[bucket(sequences)][bucket(rows)]
 *
 * Noise of a few per cent falls on every measurement, and everything slows down together when contexts grow or the
 * machine is shared. Decisions compare cells, so what is common must not look like a difference: a cell that is well
 * known hands part of its surprise to the drift, which moves all cells at once; the rest stays its own.
 *
 * A cell that was never measured is read off its neighbours: the same rows with another number of sequences (a pass
 * is mostly its rows), else the line between the next narrower and the next wider measured pass. There is nothing in
 * between to say where a kernel has its cliff, so the guess leans to the narrower one, most so in the middle: hope
 * is tried, and measured, and a few trials find a cliff by halving. */
#include "speculation/cost.h"

#include <math.h>

enum { ROWS_SINGLE = 34, MAX_WEIGHT = 32 };
static const double drift_rate = 0.15, fading = 1.0 / 600; /* per measurement since a cell was last used */
static const double least_weight = 0.5, first_weight = 0.4;

static int rows_bucket(int32_t n)
{
    if (n <= ROWS_SINGLE) return n < 1 ? 0 : n - 1;
    int b = (int)(ROWS_SINGLE + 4 * log2((double)n / ROWS_SINGLE));
    return b < COST_ROWS ? b : COST_ROWS - 1;
}

/* Rows in the middle of a bucket. */
static double bucket_rows(int b)
{
    return b < ROWS_SINGLE ? b + 1 : ROWS_SINGLE * exp2((b + 0.5 - ROWS_SINGLE) / 4);
}

int cost_seqs_bucket(int32_t n)
{
    int b = 0;
    while (b < COST_SEQS - 1 && n > 1 << b) b++;
    return b;
}

void cost_init(Cost *c, double prior_ms, double prior_slope)
{
    *c = (Cost){ .prior_ms = prior_ms, .prior_slope = prior_slope };
}

static double prior_of(const Cost *c, double rows)
{
    return c->prior_ms * (1 + c->prior_slope * (rows - 1));
}

static double cell_ms(const Cost *c, const CostCell *cell)
{
    return exp(cell->log_ms + c->drift);
}

/* The measured bucket next to b in one direction; -1: none. */
static int neighbour(const CostCell *row, int b, int step)
{
    for (b += step; b >= 0 && b < COST_ROWS; b += step)
        if (row[b].weight > 0) return b;
    return -1;
}

/* Beyond the widest measured pass: half the slope there has been so far. */
static double read_beyond(const Cost *c, const CostCell *row, double rows, int widest)
{
    int first = neighbour(row, -1, 1);
    double ms = cell_ms(c, &row[widest]), apart = bucket_rows(widest) - bucket_rows(first);
    if (first == widest) return ms * prior_of(c, rows) / prior_of(c, bucket_rows(widest));
    return ms + 0.5 * fmax(ms - cell_ms(c, &row[first]), 0) / apart * (rows - bucket_rows(widest));
}

/* Below the narrowest measured pass: half of it is hoped to fall with the rows. A draft's price may or may not, and
 * a width that is never tried is never known. */
static double read_below(const Cost *c, const CostCell *row, double rows, int narrowest)
{
    double flat = cell_ms(c, &row[narrowest]) * prior_of(c, rows) / prior_of(c, bucket_rows(narrowest));
    return flat * (0.5 + 0.5 * rows / bucket_rows(narrowest));
}

/* From measured passes of this concurrency alone; 0: there are none. */
static double read_row(const Cost *c, const CostCell *row, double rows, int b)
{
    if (row[b].weight > 0) return cell_ms(c, &row[b]);
    int low = neighbour(row, b, -1), high = neighbour(row, b, 1);
    if (low < 0 && high < 0) return 0;
    if (high < 0) return read_beyond(c, row, rows, low);
    if (low < 0) return read_below(c, row, rows, high);
    double cheap = cell_ms(c, &row[low]), dear = cell_ms(c, &row[high]);
    if (dear <= cheap) return cheap;
    double share = (rows - bucket_rows(low)) / (bucket_rows(high) - bucket_rows(low));
    return cheap + (b == (low + high) / 2 ? 0.1 : 0.5) * share * (dear - cheap);
}

/* What the same rows took with a different number of sequences, nearest first. */
static double read_other(const Cost *c, int s, int b)
{
    for (int away = 1; away < COST_SEQS; away++) {
        for (int side = -1; side <= 1; side += 2) {
            int other = s + side * away;
            if (other >= 0 && other < COST_SEQS && c->cell[other][b].weight > 0) return cell_ms(c, &c->cell[other][b]);
        }
    }
    return 0;
}

double cost_of(const Cost *c, int32_t n_rows, int32_t n_seqs)
{
    int s = cost_seqs_bucket(n_seqs), b = rows_bucket(n_rows);
    double rows = n_rows < 1 ? 1 : n_rows, ms = 0;
    if (c->cell[s][b].weight > 0) return cell_ms(c, &c->cell[s][b]);
    ms = read_other(c, s, b);
    if (ms > 0) return ms;
    ms = read_row(c, c->cell[s], rows, b);
    for (int away = 1; ms <= 0 && away < COST_SEQS; away++) {
        if (s - away >= 0) ms = read_row(c, c->cell[s - away], rows, b);
        if (ms <= 0 && s + away < COST_SEQS) ms = read_row(c, c->cell[s + away], rows, b);
    }
    return ms > 0 ? ms : prior_of(c, rows);
}

/* Measurements behind a cell, fewer the longer ago. */
static double weight_now(const Cost *c, const CostCell *cell)
{
    return cell->weight * exp(-fading * (double)(c->n_measured - cell->last));
}

void cost_took(Cost *c, int32_t n_rows, int32_t n_seqs, double ms)
{
    if (!(ms > 0) || !isfinite(ms)) return;
    CostCell *cell = &c->cell[cost_seqs_bucket(n_seqs)][rows_bucket(n_rows)];
    double weight = weight_now(c, cell), seen = log(ms);
    cell->last = ++c->n_measured;
    if (weight < least_weight) { /* new, long out of use, or measured once: the first time code and memory were cold */
        cell->log_ms = seen - c->drift;
        cell->weight = cell->weight > 0 ? 1 : first_weight;
        return;
    }
    double surprise = seen - cell->log_ms - c->drift;
    if (surprise > 1) surprise = 1; /* a stalled machine says nothing about rows */
    double common = drift_rate * weight / (weight + 4) * surprise;
    c->drift += common;
    cell->weight = weight < MAX_WEIGHT ? weight + 1 : MAX_WEIGHT;
    cell->log_ms += (surprise - common) / cell->weight;
}
