/* What a Cortex-M begins with, for program.c on an emulated one: its stack, and where to start. */
#include <stdint.h>

extern void _mainCRTStartup(void);

__attribute__((used, section(".vectors"))) void* const vectors[] = {
    (void*)0x20400000, /* the end of 4 MB of memory of QEMU's mps2-an386 */
    (void*)_mainCRTStartup,
};
