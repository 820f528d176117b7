/* linear in AVX-512: placeholder order of work, same bits as the scalar table. */
#include "backend/cpu/linear.h"

void cpu_avx512_add_linear(Ops *ops)
{
}
