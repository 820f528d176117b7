/* A model directory as llama.cpp's converter would write it: names, orders of rows and heads, norms and A_log finished.
 * Written from docs/spec/quantization.md 4.2 in the converter's direction; src/ goes the other way. Mistakes of a test stop
 * it by CHECK. */
#pragma once

#include "base/buf.h"
#include "tensor/quant.h"

/* The file's bytes into *out (buf_free), with the tokenizer.json whole where there is one. Matrices whose rows are whole
 * blocks of `matrices` are encoded (support/encode.h), others keep their type, as all do with QUANT_NONE; everything else
 * becomes F32. */
void gguf_from_model(Buf *out, const char *dir, QuantFormat matrices);
