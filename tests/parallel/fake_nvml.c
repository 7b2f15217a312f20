/* A libnvidia-ml.so.1 for tests. Every call reads its answer from the lines "name=value" of the file
   $FAKE_NVML; "used.1=5" is about GPU 1, and the value "error:3" is that error of nvml.h. If OLD is
   defined, functions that old drivers lack are left out. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long u64;
typedef struct { u64 total, free, used; } Memory;
typedef struct { u64 reference, violation; } Violation;
typedef struct { unsigned pid; u64 used; } Process1;
typedef struct { unsigned pid; u64 used; unsigned gpu_instance, compute_instance; } Process3;

static int find(const char *name, int gpu, char *value) {
    char line[512], wanted[64], *file = getenv("FAKE_NVML");
    FILE *f = file ? fopen(file, "r") : NULL;
    int found = 0;
    if (gpu < 0) snprintf(wanted, sizeof wanted, "%s=", name);
    else snprintf(wanted, sizeof wanted, "%s.%d=", name, gpu);
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, wanted, strlen(wanted))) {
            line[strcspn(line, "\n")] = 0;
            strcpy(value, line + strlen(wanted));
            found = 1;
        }
    if (f) fclose(f);
    return found;
}

/* 0, or an error of nvml.h: 3 (not supported) for what the file does not name. */
static int text(const char *name, int gpu, char *value, unsigned length) {
    char found[512];
    if (!find(name, gpu, found)) return 3;
    if (!strncmp(found, "error:", 6)) return atoi(found + 6);
    if (strlen(found) >= length) return 7;
    strcpy(value, found);
    return 0;
}

static int number(const char *name, int gpu, u64 *value) {
    char found[512];
    int error = text(name, gpu, found, sizeof found);
    if (!error) *value = strtoull(found, NULL, 10);
    return error;
}

static int small(const char *name, int gpu, unsigned *value) {
    u64 found;
    int error = number(name, gpu, &found);
    if (!error) *value = (unsigned)found;
    return error;
}

#define GPU(handle) ((int)(long)(handle) - 1)

int nvmlInit_v2(void) { u64 x; int e = number("init", -1, &x); return e == 3 ? 0 : e; }
int nvmlInitWithFlags(unsigned flags) { return nvmlInit_v2(); }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int error) { return error == 9 ? "Driver Not Loaded" : "Not Supported"; }
int nvmlSystemGetDriverVersion(char *v, unsigned n) { return text("driver", -1, v, n); }
int nvmlDeviceGetCount_v2(unsigned *n) { return small("gpus", -1, n); }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **h) { *h = (void *)(long)(i + 1); return 0; }
int nvmlDeviceGetName(void *h, char *v, unsigned n) { return text("name", GPU(h), v, n); }
int nvmlDeviceGetUUID(void *h, char *v, unsigned n) { return text("uuid", GPU(h), v, n); }
int nvmlDeviceGetMemoryInfo(void *h, Memory *m) {
    int error = number("used", GPU(h), &m->used);
    if (!error) error = number("total", GPU(h), &m->total);
    m->free = m->total - m->used;
    return error;
}
int nvmlDeviceGetPowerUsage(void *h, unsigned *v) { return small("power", GPU(h), v); }
int nvmlDeviceGetEnforcedPowerLimit(void *h, unsigned *v) { return small("limit", GPU(h), v); }
int nvmlDeviceGetTemperature(void *h, unsigned s, unsigned *v) { return small("celsius", GPU(h), v); }
int nvmlDeviceGetComputeMode(void *h, unsigned *v) { return small("mode", GPU(h), v); }
int nvmlDeviceGetCpuAffinity(void *h, unsigned n, unsigned long *words) {
    u64 low;
    int error = number("cpus", GPU(h), &low);
    memset(words, 0, n * sizeof *words);
    words[0] = words[1] = low;
    return error;
}
int nvmlDeviceGetClockInfo(void *h, unsigned kind, unsigned *v) {
    return small(kind == 1 ? "clock" : "memory_clock", GPU(h), v);
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void *h, u64 *v) {
    return number("reasons", GPU(h), v);
}

/* "processes.0=41:1000,42:-": a process that takes 1000 bytes, one of which nothing is known. */
static int processes(void *h, unsigned *count, void *found, int version) {
    char value[512] = "", *one, *rest = value;
    unsigned n = 0, room = *count;
    int error = text("processes", GPU(h), value, sizeof value);
    if (error) return error;
    while ((one = strsep(&rest, ",")) && *one) {
        char *colon = strchr(one, ':');
        u64 used = colon[1] == '-' ? (u64)-1 : strtoull(colon + 1, NULL, 10);
        if (n < room && version == 1)
            ((Process1 *)found)[n] = (Process1){(unsigned)atoi(one), used};
        else if (n < room)
            ((Process3 *)found)[n] = (Process3){(unsigned)atoi(one), used, -1u, -1u};
        n++;
    }
    *count = n;
    return n > room ? 7 : 0;
}
int nvmlDeviceGetComputeRunningProcesses(void *h, unsigned *n, void *p) {
    return processes(h, n, p, 1);
}

#ifndef OLD
int nvmlDeviceGetComputeRunningProcesses_v3(void *h, unsigned *n, void *p) {
    return processes(h, n, p, 3);
}
int nvmlDeviceGetCudaComputeCapability(void *h, int *major, int *minor) {
    unsigned v;
    int error = small("capability", GPU(h), &v);
    *major = (int)v / 10, *minor = (int)v % 10;
    return error;
}
/* "slices.1=2": MIG divides GPU 1 into two slices, which the lines about GPUs 20 and 21 describe. */
int nvmlDeviceGetMigMode(void *h, unsigned *now, unsigned *later) {
    *now = *later = 1;
    unsigned n;
    return small("slices", GPU(h), &n);
}
int nvmlDeviceGetMigDeviceHandleByIndex(void *h, unsigned i, void **slice) {
    unsigned n;
    int error = small("slices", GPU(h), &n);
    if (!error && i >= n) error = 6;
    if (!error) *slice = (void *)(long)(10 * (GPU(h) + 1) + i + 1);
    return error;
}
int nvmlDeviceGetTotalEnergyConsumption(void *h, u64 *v) { return number("energy", GPU(h), v); }
int nvmlDeviceGetViolationStatus(void *h, unsigned policy, Violation *v) {
    v->reference = 0;
    return number(policy == 0 ? "power_held" : policy == 1 ? "heat_held" : "", GPU(h), &v->violation);
}
#endif
