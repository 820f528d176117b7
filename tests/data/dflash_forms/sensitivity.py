#!/usr/bin/env python3
"""What deliberate mistakes do to the cases of make_reference.py: prints the table of README.md. Needs numpy only.

A mistake is the reference with one thing changed: an edit of its config, tensors and tables, or a class with one
method replaced. Its size is the largest difference of any logit or selector score in both rounds (rows 1..L, the
drafts'), as a share of the largest right one.
"""
import copy

import numpy as np

import make_reference as ref

# A right float32 implementation may differ by 3e-6. Every mistake has to show at least ten times that.
VISIBLE = 3e-5

# ---------------------------------------------------------------------------------------------------------------------
# One method replaced: positions, masks, cache


class WindowOfAnchorRow(ref.Drafter):
    """All rows see the context that the anchor's row sees."""

    def visible(self, i, query, key):
        seen, context = super().visible(i, query, key), key < query[0]
        seen[:, context] = seen[0, context]
        return seen


class PositionsFromNext(ref.Drafter):
    def block_positions(self, rows):
        return super().block_positions(rows) + 1


class KeepsBlockRows(ref.Drafter):
    """Remembers the last block's keys and values, for mistakes that let them survive."""
    left = None

    def draft(self, block):
        self.left = []
        return super().draft(block)

    def attention(self, i, x):
        self.left.append(self.keys_values(i, x, self.block_positions(len(x))))
        return super().attention(i, x)

    def keep(self, n):
        self.cache = [tuple(np.concatenate([old, new[:n]]) for old, new in zip(*both))
                      for both in zip(self.cache, self.left)]
        self.n_committed = len(self.cache[0][0])


class BlockNotCropped(KeepsBlockRows):
    def append(self, features):
        if self.left:
            self.keep(None)
        super().append(features)


class BlockRowsCommitted(KeepsBlockRows):
    """The accepted tokens' context rows are their block rows, not made from features."""

    def append(self, features):
        if self.left:
            self.keep(len(features))
        else:
            super().append(features)


class AnchorRowForgotten(ref.Drafter):
    def append(self, features):
        super().append(features[1:] if self.n_committed else features)


class ShortenedTooLate(ref.Drafter):
    """Runs the trained block and keeps the first rows."""

    def draft(self, block):
        y, logits = super().draft(ref.block_of(block[0], ref.BLOCK))
        return y[:len(block)], logits[:len(block)]


class RowsOneEarly(ref.Drafter):
    def draft(self, block):
        return tuple(np.roll(x, 1, 0) for x in super().draft(block))


# ---------------------------------------------------------------------------------------------------------------------
# Rope, norms, heads


class AdjacentPairs(ref.Drafter):
    def rope(self, x, positions):
        order = np.concatenate([np.arange(0, self.head_dim, 2), np.arange(1, self.head_dim, 2)])
        out = np.empty_like(x)
        out[..., order] = super().rope(x[..., order], positions)
        return out


class RopeFactorOnQueries(ref.Drafter):
    def keys_values(self, i, x, positions):
        k, v = super().keys_values(i, x, positions)
        return k / self.rope_factor, v


class OnePlusWeight(ref.Drafter):
    def norm(self, x, name):
        return super().norm(x, name) / self.w[name] * (1 + self.w[name])


class Appending(ref.Drafter):
    """Knows whether keys_values() works on context rows."""
    is_appending = False

    def append(self, features):
        self.is_appending = True
        super().append(features)
        self.is_appending = False


class ContextThroughInputNorm(Appending):
    def keys_values(self, i, x, positions):
        if self.is_appending:
            x = self.norm(x, f"layers.{i}.input_layernorm.weight")
        return super().keys_values(i, x, positions)


class CapBeforeMultiplier(ref.Drafter):
    def process(self, logits):
        cap = self.own["final_logit_softcapping"]
        return cap * np.tanh(logits / cap) * self.own["output_multiplier"]


# ---------------------------------------------------------------------------------------------------------------------
# The convolution


class TapsReversed(ref.Drafter):
    def convolve(self, x, base, dynamic):
        return super().convolve(x, base[::-1], dynamic[:, ::-1])


class ReadsRowAfter(ref.Drafter):
    def convolve(self, x, base, dynamic):
        return super().convolve(x[::-1], base, dynamic[::-1])[::-1]


class AnchorRowWraps(ref.Drafter):
    def convolve(self, x, base, dynamic):
        out = super().convolve(x, base, dynamic)
        out[0] += (base[1] + np.repeat(dynamic[0, 1], self.own["conv_group_size"])) * x[-1]
        return out


class GroupsStrided(ref.Drafter):
    """Channel c belongs to group c % n_groups."""

    def convolve(self, x, base, dynamic):
        order = np.arange(x.shape[1]).reshape(self.own["conv_group_size"], -1).T.ravel()
        out = np.empty_like(x)
        out[:, order] = super().convolve(x[:, order], base[:, order], dynamic)
        return out


class NoConvolution(ref.Drafter):
    def convolve(self, x, base, dynamic):
        return x


class QueriesOnly(Appending):
    """Keys and values of the block come from the input before the convolution."""

    def sublayer(self, i, kind, z):
        self.before = z
        return super().sublayer(i, kind, z)

    def keys_values(self, i, x, positions):
        return super().keys_values(i, x if self.is_appending else self.before, positions)


class Rearranged(ref.Drafter):
    """The sublayer spelled out as around(), for mistakes in its order."""

    def sublayer(self, i, kind, z):
        name = f"layers.{i}.{kind}_conv."
        run = self.attention if kind == "attention" else self.mlp

        def convolve(x, side, source):
            dynamic = source @ self.w[name + "kernel_projection.weight"].T
            dynamic = dynamic.reshape(len(x), 2, self.own["conv_kernel_size"], -1)
            return self.convolve(x, self.w[name + "base_kernel"][side], dynamic[:, side])
        return self.around(convolve, lambda x: run(i, x), z)


class OutputKernelFromOutput(Rearranged):
    def around(self, convolve, run, z):
        v = run(convolve(z, 0, z))
        return convolve(v, 1, v)


class OutputKernelFromConvolved(Rearranged):
    def around(self, convolve, run, z):
        u = convolve(z, 0, z)
        return convolve(run(u), 1, u)


class InputSideOnly(Rearranged):
    def around(self, convolve, run, z):
        return run(convolve(z, 0, z))


# ---------------------------------------------------------------------------------------------------------------------
# The selector


class AnchorAlways(ref.Drafter):
    def walk(self, anchor, y, logits):
        self.anchor = anchor
        return super().walk(anchor, y, logits)

    def edge(self, previous, e, candidates):
        return super().edge(self.anchor, e, candidates)


class BestLogitBefore(ref.Drafter):
    """The predecessor is the row before's best candidate by logit, not the id walked to."""

    def walk(self, anchor, y, logits):
        self.chain = iter([anchor, *logits[1:-1].argmax(1)])
        return super().walk(anchor, y, logits)

    def edge(self, previous, e, candidates):
        return super().edge(next(self.chain), e, candidates)


class NoEdge(ref.Drafter):
    def edge(self, previous, e, candidates):
        return super().edge(previous, e, candidates) * 0


class HiddenOneEarly(ref.Drafter):
    def walk(self, anchor, y, logits):
        return super().walk(anchor, np.roll(y, 1, 0), logits)


class HiddenUnweighted(ref.Drafter):
    def walk(self, anchor, y, logits):
        return super().walk(anchor, y / self.w["norm.weight"], logits)


class RawLogits(ref.Drafter):
    def walk(self, anchor, y, logits):
        return super().walk(anchor, y, y @ self.head.T)


class Viterbi(ref.Drafter):
    """The best whole path. Its scores are given as the greedy walk's: only the ids can differ."""

    def walk(self, anchor, y, logits):
        _, candidates, unary, scores = super().walk(anchor, y, logits)
        hidden = y @ self.w["candidate_selector.hidden_projection.weight"].T
        best, back = scores[0], []
        for j in range(1, len(candidates)):
            edges = [self.edge(p, hidden[1 + j], candidates[j]) for p in candidates[j - 1]]
            table = best[:, None] + unary[j] + np.stack(edges)
            back.append(table.argmax(0))
            best = table.max(0)
        path = [best.argmax()]
        for step in reversed(back):
            path.append(step[path[-1]])
        return np.array([row[k] for row, k in zip(candidates, reversed(path))]), candidates, unary, scores


# ---------------------------------------------------------------------------------------------------------------------
# Edits: of (config, weights, tables = [embedding, head])


def top(**keys):
    return lambda config, weights, tables: config.update(keys)


def own(**keys):
    return lambda config, weights, tables: config["dflash_config"].update(keys)


def yarn(**keys):
    return lambda config, weights, tables: config["rope_scaling"].update(keys)


def window(change):
    def edit(config, weights, tables):
        config["sliding_window"] += change
        if "swa_window_size" in config["dflash_config"]:
            config["dflash_config"]["swa_window_size"] += change
    return edit


def all_sliding(config, weights, tables):
    config["is_causal"] = False
    config["layer_types"] = [ref.SLIDING] * config["num_hidden_layers"]


def other_causality(config, weights, tables):
    """Flips every layer alike, or the sliding ones where the layers differ."""
    flags = {causal for _, causal in ref.layer_rules(config)}
    config["is_causal"] = len(flags) == 1 and not flags.pop()


def other_eps(config, weights, tables):
    config["rms_norm_eps"] = {1e-5: 1e-6, 1e-6: 1e-5}[config["rms_norm_eps"]]


def weights_named(ending, change):
    def edit(config, weights, tables):
        for name in weights:
            if name.endswith(ending):
                weights[name] = change(weights[name])
    return edit


def codebooks_swapped(config, weights, tables):
    a, b = (f"candidate_selector.{side}_codebook" for side in ("predecessor", "successor"))
    weights[a], weights[b] = weights[b], weights[a]


def heads_interleaved(config, weights, tables):
    """Query head h reads key head h % n_kv: the same as other query heads under the right rule."""
    n, n_kv = config["num_attention_heads"], config["num_key_value_heads"]
    order = np.arange(n).reshape(-1, n_kv).T.ravel()
    for name, w in weights.items():
        if name.endswith("q_proj.weight"):
            weights[name] = w.reshape(n, -1, w.shape[1])[order].reshape(w.shape)
        if name.endswith("o_proj.weight"):
            weights[name] = w.reshape(len(w), n, -1)[:, order].reshape(w.shape)


def head_is_embedding(config, weights, tables):
    tables[1] = tables[0]


def mask_row_zero(config, weights, tables):
    tables[0][ref.MASK] = 0


# ---------------------------------------------------------------------------------------------------------------------

EVERY = list(ref.CASES)
MIXED = ["v1_sliding", "v1_short_block"]
WINDOWED = [*MIXED, "v1_sliding_bidirectional", "v1_use_swa", "dflash2"]
SCALED = ["v1_full_yarn", "dflash2"]
YARN, SWA, SHORT, TWO = ["v1_full_yarn"], ["v1_use_swa"], ["v1_short_block"], ["dflash2"]
FLAGS = ["v1_both_flags"]

MISTAKES = [
    ("window one too small", window(-1), WINDOWED),
    ("window one too large", window(+1), WINDOWED),
    ("all rows see the anchor row's window", WindowOfAnchorRow, WINDOWED),
    ("windowed layers see everything", window(10**6), WINDOWED),
    ("full layers windowed too, none causal", all_sliding, ["v1_sliding_bidirectional"]),
    ("causal flag flipped", other_causality, EVERY),
    ("sliding layers' causality taken for all", top(is_causal=True), MIXED),
    ("`dflash_config.causal` before `is_causal`", top(is_causal=True), FLAGS),
    ("`sliding_window` before `swa_window_size`", own(swa_window_size=None), SWA),
    ("`use_swa` ignored", own(use_swa=False), SWA),
    ("all 8 rows run, 5 kept", ShortenedTooLate, SHORT),
    ("YaRN ignored", top(rope_scaling=None), YARN),
    ("YaRN: no factor on cos and sin", yarn(attention_factor=1.0), YARN),
    ("YaRN: that factor on the queries only", RopeFactorOnQueries, YARN),
    ("YaRN: factor = max_position / original", yarn(factor=8.0), YARN),
    ("YaRN: original = max_position", yarn(original_max_position_embeddings=2048), YARN),
    ("YaRN: bounds not truncated", yarn(truncate=False), YARN),
    ("rope on adjacent pairs", AdjacentPairs, EVERY),
    ("`input_embedding_scale` left out", own(input_embedding_scale=1), YARN),
    ("`output_multiplier` left out", own(output_multiplier=1), SCALED),
    ("softcap left out", own(final_logit_softcapping=None), SCALED),
    ("softcap before multiplier", CapBeforeMultiplier, SCALED),
    ("eps 1e-5 and 1e-6 exchanged", other_eps, EVERY),
    ("block positions from P + 1", PositionsFromNext, EVERY),
    ("input_layernorm on the context rows", ContextThroughInputNorm, EVERY),
    ("hidden_norm's weight left out", weights_named("hidden_norm.weight", np.ones_like), EVERY),
    ("norms with 1 + w", OnePlusWeight, EVERY),
    ("query head h reads key head h % n_kv", heads_interleaved, EVERY),
    ("drafts read one row early", RowsOneEarly, EVERY),
    ("mask rows zero, not the target's row", mask_row_zero, EVERY),
    ("head taken from the embedding", head_is_embedding, EVERY),
    ("round 1's block left in the cache", BlockNotCropped, EVERY),
    ("block rows committed as context rows", BlockRowsCommitted, EVERY),
    ("anchor's context row not appended", AnchorRowForgotten, EVERY),
    ("conv: base sides swapped", weights_named("base_kernel", np.flipud), TWO),
    ("conv: dynamic sides swapped", weights_named("kernel_projection.weight", lambda w: np.roll(
        w, len(w) // 2, 0)), TWO),
    ("conv: projection read as [k][2][groups]", weights_named("kernel_projection.weight", lambda w: w.reshape(
        2, 2, -1, w.shape[1]).swapaxes(0, 1).reshape(w.shape)), TWO),
    ("conv: projection read as [groups][2][k]", weights_named("kernel_projection.weight", lambda w: w.reshape(
        -1, 4, w.shape[1]).swapaxes(0, 1).reshape(w.shape)), TWO),
    ("conv: taps reversed", TapsReversed, TWO),
    ("conv: reads the row after, not before", ReadsRowAfter, TWO),
    ("conv: anchor's row wraps to the last", AnchorRowWraps, TWO),
    ("conv: channel c in group c % n_groups", GroupsStrided, TWO),
    ("conv: output kernel from the output", OutputKernelFromOutput, TWO),
    ("conv: output kernel from the convolved input", OutputKernelFromConvolved, TWO),
    ("conv: input side only", InputSideOnly, TWO),
    ("conv: not for keys and values", QueriesOnly, TWO),
    ("conv left out", NoConvolution, TWO),
    ("selector: predecessor and successor swapped", codebooks_swapped, TWO),
    ("selector: predecessor always the anchor", AnchorAlways, TWO),
    ("selector: predecessor the best logit's id", BestLogitBefore, TWO),
    ("selector: hidden of the row before", HiddenOneEarly, TWO),
    ("selector: hidden without the final norm's weight", HiddenUnweighted, TWO),
    ("selector: logits before multiplier and cap", RawLogits, TWO),
    ("selector: unary only", NoEdge, TWO),
    ("selector: Viterbi, not greedy", Viterbi, TWO),
]


def outputs(name, tables, mistake=None):
    config, weights, given, rows = ref.make_case(name)
    config, tables, kind = copy.deepcopy(config), [table.copy() for table in tables], ref.Drafter
    if isinstance(mistake, type):
        kind = mistake
    elif mistake:
        mistake(config, weights, tables)
    return ref.run_case(kind(config, weights, *tables), rows, given)


def difference(wrong, right):
    """(share of the largest logit or score, drafts that changed)."""
    size, changed = 0.0, 0
    for number in (1, 2):
        logits = f"draft_logits{number}"
        size = max(size, np.abs(wrong[logits] - right[logits])[1:].max() / np.abs(right[logits]).max())
        if f"scores{number}" in right:
            size = max(size, ref.share(wrong[f"scores{number}"], right[f"scores{number}"]))
        changed += int((wrong[f"draft{number}"] != right[f"draft{number}"]).sum())
    return size, changed


def main():
    _, target = ref.random_target()
    tables = target["model.embed_tokens.weight"], target["lm_head.weight"]
    right = {name: outputs(name, tables) for name in EVERY}
    print("| mistake | cases | smallest difference | in | drafts changed there |\n|---|---:|---:|---|---:|")
    for what, mistake, cases in MISTAKES:
        size, changed, name = min((*difference(outputs(name, tables, mistake), right[name]), name) for name in cases)
        assert size > VISIBLE or changed, (what, size, name)
        drafts = sum(len(right[name][f"draft{number}"]) for number in (1, 2))
        print(f"| {what} | {len(cases)} | {size:.1e} | {name} | {changed} of {drafts} |")


if __name__ == "__main__":
    main()
