/* Simple encoders for tests: numbers to every stored format that src/ decodes, by the largest magnitude or the extremes of a
 * block. The layouts are those of docs/spec/quantization.md section 2, written in the writer's direction. */
#pragma once

#include "tensor/quant.h"

#include <stddef.h>
#include <stdint.h>

/* Rounds to the nearest float16, ties to even, denormals included; CHECKs that it is finite. */
uint16_t f32_to_f16(float x);

/* n numbers, whole blocks, to a blocks layout; returns the bytes written. global: divides NVFP4's numbers first. */
size_t encode_blocks(QuantFormat f, void *out, const float *x, int64_t n, float global);

/* A run of numbers that share a scale and a zero point, as unsigned 4-bit codes: x = scale * (code - zero). The scale is
 * rounded to float16 before the codes are chosen. */
void encode_affine(uint8_t *codes, const float *x, int64_t n, float *scale, int *zero);

/* MXFP4: 32 numbers, one after the other, to E2M1 codes and an E8M0 scale. */
uint8_t encode_mxfp4(uint8_t codes[32], const float *x);
