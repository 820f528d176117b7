/* Between quant.c and the files of single layouts. */
#pragma once

#include "tensor/quant.h"

void fp8_decode_row(const QuantMatrix *m, int64_t row, float *out);
void nvfp4_decode_row(const QuantMatrix *m, int64_t row, float *out);
void mxfp4_decode_row(const QuantMatrix *m, int64_t row, float *out);
void int4_decode_row(const QuantMatrix *m, int64_t row, float *out);
