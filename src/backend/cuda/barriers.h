/* Barriers in shared memory (mbarrier), as the kernels with a warp that brings and warps that multiply use them. */
#pragma once

#include <stdint.h>

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HAS_WGMMA 1
#else
#define HAS_WGMMA 0
#endif

static __device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}
static __device__ __forceinline__ void barrier_init(uint64_t *b, int count)
{
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(count) : "memory");
}
static __device__ __forceinline__ void barrier_arrive(uint64_t *b)
{
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
}
/* Arrives when what this thread has copied so far (cp.async) is there. */
static __device__ __forceinline__ void barrier_arrive_behind_copies(uint64_t *b)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(b)) : "memory");
}
static __device__ __forceinline__ void barrier_wait(uint64_t *b, uint32_t parity)
{
    asm volatile("{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n@!done bra again;\n}"
                 ::"r"(shared_address(b)), "r"(parity) : "memory");
}
/* What this thread has written to shared memory, or was told about, is there for wgmma and the copy engine. */
static __device__ __forceinline__ void publish_to_engines()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/* Some warps of a block meet: N threads. */
template <int N> static __device__ __forceinline__ void warps_meet(int barrier)
{
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(N) : "memory");
}
/* Registers of four warps that bring go to those that multiply. */
template <int N> static __device__ __forceinline__ void registers_give()
{
#if HAS_WGMMA
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
#endif
}
template <int N> static __device__ __forceinline__ void registers_take()
{
#if HAS_WGMMA
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
#endif
}
