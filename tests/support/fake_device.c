/* A device module that opens and has nothing: for what the program decides when there is a device, before it uses it. */
#include "backend/device.h"

struct Device {
    int unused;
};

static Device the_device;

static const char *open_device(Device **out, RowCounts *counts)
{
    *out = &the_device;
    return NULL;
}

static void close_device(Device *d)
{
}

static const char *text(const Device *d)
{
    return "a fake device";
}

static void memory(const Device *d, size_t *available, size_t *total)
{
    *available = *total = (size_t)1 << 30;
}

static void fill_ops(Ops *ops)
{
}

const DeviceModule *tandem_device_module(void)
{
    static const DeviceModule module = { .abi = DEVICE_ABI, .name = "cuda", .open = open_device, .close = close_device,
                                         .text = text, .memory = memory, .fill_ops = fill_ops };
    return &module;
}
