/* A model directory as llama.cpp's converter would write it: names, orders of rows and heads, norms and A_log finished.
 * Written from docs/spec/quantization.md 4.2 in the converter's direction; src/ goes the other way. Mistakes of a test stop
 * it by CHECK. */
#pragma once

#include "base/buf.h"

/* The file's bytes into *out (buf_free). Matrices keep their type, everything else becomes F32. */
void gguf_from_model(Buf *out, const char *dir);
