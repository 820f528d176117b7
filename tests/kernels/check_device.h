/* The kernel checks on a GPU: TANDEM_CHECK_DEVICE=cuda check_linear
 *
 * The device is the only variant. Memory of a check is shared by both sides, so the scalar table and the device work on the
 * same inputs; every op waits for its end. float32 must have the bits of the scalar table. bf16 products must have the bits
 * of a tensor core as measured on sm_90 (docs/ARCHITECTURE.md, GPU contract), which the reference computes (tensor_core.h). */
#pragma once

#include "check.h"

bool check_device_open(Check *c); /* false: a sentence was printed */
void check_device_close(Check *c);
void check_device_done(Check *c);
void check_device_weight(Check *c, const Weight *w); /* the device's twin of a weight in the CPU layout */
const Ops *check_device_ops(Check *c);
