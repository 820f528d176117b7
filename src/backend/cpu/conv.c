/* Causal depthwise convolution over a row's path, kernel 4, then silu: the contract.
 *
 * Inputs before a row come from the rows before it on its path, then from the slot's state (the last three
 * raw rows before the batch), then they are zero:
 *
 *     state[0] state[1] state[2] | row row row ...        tap 0 is the oldest of four
 *
 * Split by channels: a worker walks all rows of its channels, so it reads the old state before it writes the
 * new one, and nobody else touches either. */
#include "backend/cpu/conv.h"
#include "base/fmath.h"
#include "backend/cpu/kv.h"

#include <math.h>
#include <string.h>

typedef struct ConvJob {
    Tensor       out, mix, log_mix;
    const float *weight;
    StateView    state;
    const Batch *batch;
    ConvRowFn    row_fn;
} ConvJob;

static float *state_of(StateView state, const BatchSeq *seq)
{
    return (float *)((char *)state.data + (size_t)seq->slot * state.slot_bytes);
}

/* Row `age` of the state (2 = the newest) from channel `first` on; zeros before the first token. */
static const float *state_row(StateView state, int64_t channels, const BatchSeq *seq, int age, int64_t first)
{
    static const float zeros[CONV_CHUNK];
    return seq->n_committed == 0 ? zeros : state_of(state, seq) + age * channels + first;
}

/* in[b] = the raw row b tokens before `row`. */
static void find_inputs(const ConvJob *job, const BatchSeq *seq, int32_t row, int64_t first, const float *in[CONV_TAPS])
{
    int age = CONV_TAIL;
    in[0] = tensor_f32(job->mix, row) + first;
    for (int b = 1; b < CONV_TAPS; b++) {
        if (row >= 0) row = batch_parent(job->batch, seq, row);
        in[b] = row >= 0 ? tensor_f32(job->mix, row) + first
                         : state_row(job->state, job->mix.shape[1], seq, --age, first);
    }
}

/* Oldest first, because in[] may point into the state that is written. */
static void put_tail(float *state, int64_t channels, int64_t first, const float *const in[CONV_TAIL], int64_t n)
{
    for (int age = 0; age < CONV_TAIL; age++)
        memmove(state + age * channels + first, in[CONV_TAIL - 1 - age], (size_t)n * sizeof *state);
}

static void conv_sequence(const ConvJob *job, const BatchSeq *seq, float tap[CONV_TAPS][CONV_CHUNK], int64_t first,
                          int64_t n)
{
    const float *in[CONV_TAPS];
    for (int32_t r = seq->first_row; r < seq->first_row + seq->n_rows; r++) {
        find_inputs(job, seq, r, first, in);
        job->row_fn(tensor_f32(job->out, r) + first, in, tap, n);
        if (!seq->certain) memcpy(tensor_f32(job->log_mix, r) + first, in[0], (size_t)n * sizeof(float));
    }
    if (seq->certain) put_tail(state_of(job->state, seq), job->mix.shape[1], first, in, n);
}

static void conv_chunks(void *arg, int64_t first_chunk, int64_t end_chunk, int worker)
{
    const ConvJob *job = arg;
    int64_t channels = job->mix.shape[1];
    float tap[CONV_TAPS][CONV_CHUNK];
    for (int64_t first = first_chunk * CONV_CHUNK; first < channels && first < end_chunk * CONV_CHUNK;
         first += CONV_CHUNK) {
        int64_t n = channels - first < CONV_CHUNK ? channels - first : CONV_CHUNK;
        for (int64_t c = 0; c < n; c++)
            for (int t = 0; t < CONV_TAPS; t++) tap[t][c] = job->weight[(first + c) * CONV_TAPS + t];
        for (int32_t s = 0; s < job->batch->n_seqs; s++) {
            const BatchSeq *seq = &job->batch->seqs[s];
            if (batch_seq_is_real(job->batch, seq)) conv_sequence(job, seq, tap, first, n);
        }
    }
}

void conv_run(Stream *st, Tensor out, Tensor mix, const float *weight, StateView state, const Batch *batch,
              Tensor log_mix, ConvRowFn row_fn)
{
    ConvJob job = { out, mix, log_mix, weight, state, batch, row_fn };
    int64_t n_chunks = (mix.shape[1] + CONV_CHUNK - 1) / CONV_CHUNK;
    stream_for(st, n_chunks, 16 / (batch->n_rows + 1) + 1, conv_chunks, &job);
    FAULT_POINT("conv", tensor_rows(out, batch_real_rows(batch)), batch_real_rows(batch));
}

void conv_commit_channels(StateView state, int64_t channels, const BatchSeq *seq, Tensor log_mix,
                          const Commit *commit, int64_t first, int64_t n)
{
    const float *in[CONV_TAIL];
    int age = CONV_TAIL;
    for (int b = 0; b < CONV_TAIL; b++) {
        int32_t d = commit->n_path - 1 - b;
        in[b] = d >= 0 ? tensor_f32(log_mix, commit->path_rows[d]) + first
                       : state_row(state, channels, seq, --age, first);
    }
    put_tail(state_of(state, seq), channels, first, in, n);
}

static void conv_row(float *out, const float *const in[CONV_TAPS], float tap[CONV_TAPS][CONV_CHUNK], int64_t n)
{
    for (int64_t c = 0; c < n; c++) {
        float x = tap[0][c] * in[3][c];
        for (int t = 1; t < CONV_TAPS; t++) x = fmaf(tap[t][c], in[CONV_TAPS - 1 - t][c], x);
        out[c] = f_silu(x);
    }
}

static void conv_silu(Stream *st, Tensor out, Tensor mix, const float *weight, StateView state, const Batch *batch,
                      Tensor log_mix)
{
    conv_run(st, out, mix, weight, state, batch, log_mix, conv_row);
}

void cpu_scalar_add_conv(Ops *ops)
{
    ops->conv_silu = conv_silu;
}
