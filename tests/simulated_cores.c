/* Preloaded into a process, lets it see SIMULATED_CORES processor cores: by affinity, by sysconf and by get_nprocs. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static long cores(void) { return atol(getenv("SIMULATED_CORES")); }

int sched_getaffinity(pid_t pid, size_t size, cpu_set_t *set) {
  (void)pid;
  if (size * 8 < (size_t)cores()) {
    errno = EINVAL;
    return -1;
  }
  memset(set, 0, size);
  for (long core = 0; core < cores(); core++) CPU_SET_S(core, size, set);
  return 0;
}

long sysconf(int name) {
  if (name == _SC_NPROCESSORS_ONLN || name == _SC_NPROCESSORS_CONF) return cores();
  return ((long (*)(int))dlsym(RTLD_NEXT, "sysconf"))(name);
}

int get_nprocs(void) { return (int)cores(); }
int get_nprocs_conf(void) { return (int)cores(); }
