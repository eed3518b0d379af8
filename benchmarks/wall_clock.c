/* A wall clock that jumps, for a process that is started with LD_PRELOAD.
 *
 *     cc -shared -fPIC -O2 -o wall_clock.so wall_clock.c
 *     WALL_CLOCK=FILE LD_PRELOAD=./wall_clock.so COMMAND
 *
 * FILE holds a native int64_t: seconds that CLOCK_REALTIME is ahead. Whoever writes it makes the
 * clock jump at once. The monotonic clocks stay as they are, as they do when a machine's time is
 * set. Linux.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *ahead;

__attribute__((constructor)) static void map_file(void) {
    const char *path = getenv("WALL_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *mapped = mmap(NULL, sizeof *ahead, PROT_READ, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED) ahead = mapped;
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int status = (int)syscall(SYS_clock_gettime, clock, now);
    if (!status && ahead && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += *ahead;
    return status;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    int status = (int)syscall(SYS_gettimeofday, now, zone);
    if (!status && now && ahead) now->tv_sec += *ahead;
    return status;
}

time_t time(time_t *result) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (result) *result = now.tv_sec;
    return now.tv_sec;
}
