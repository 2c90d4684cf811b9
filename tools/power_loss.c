/* Records what is on disk, so that a test can simulate a loss of power.
 *
 *   cc -shared -fPIC -o power_loss.so power_loss.c -ldl
 *
 * Preload it into a process. At each fsync of a file or folder below $POWER_LOSS_DISK it copies the
 * file's content, or the folder's names and the key that each refers to, to $POWER_LOSS_STORE. What
 * was never synced is not there, nor are later content and names.
 */

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Writes a key that identifies a file or folder independently of its name; -1 if it does not exist.
 * The time of birth is part of it, as the system reuses the inode numbers of removed files. */
int power_loss_key(int folder, const char *name, char *key, size_t size) {
  struct statx found;
  int flags = AT_SYMLINK_NOFOLLOW | (*name ? 0 : AT_EMPTY_PATH);
  if (statx(folder, name, flags, STATX_INO | STATX_BTIME | STATX_TYPE, &found)) return -1;
  snprintf(key, size, "%c%llu-%lld-%u", S_ISDIR(found.stx_mode) ? 'd' : 'f',
           (unsigned long long)found.stx_ino, (long long)found.stx_btime.tv_sec,
           found.stx_btime.tv_nsec);
  return 0;
}

static void copy_names(const char *path, FILE *out) {
  DIR *folder = opendir(path);
  char key[80];
  for (struct dirent *entry; folder && (entry = readdir(folder));) {
    if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
    if (!power_loss_key(dirfd(folder), entry->d_name, key, sizeof key))
      fprintf(out, "%s %s\n", key, entry->d_name);
  }
  if (folder) closedir(folder);
}

static void copy_content(const char *path, FILE *out) {
  static __thread char block[1 << 16];
  FILE *in = fopen(path, "rb");
  for (size_t count; in && (count = fread(block, 1, sizeof block, in));)
    fwrite(block, 1, count, out);
  if (in) fclose(in);
}

/* Syncs by the system's function, and records what was synced. */
static int synced(const char *name, int descriptor) {
  int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
  const char *disk = getenv("POWER_LOSS_DISK"), *store = getenv("POWER_LOSS_STORE");
  char link[64], path[PATH_MAX], key[80], partial[PATH_MAX], whole[PATH_MAX];
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  ssize_t length = disk && store ? readlink(link, path, sizeof path - 1) : -1;
  if (length < 0) return real(descriptor);
  path[length] = 0;
  if (strncmp(path, disk, strlen(disk)) || power_loss_key(descriptor, "", key, sizeof key))
    return real(descriptor);
  snprintf(partial, sizeof partial, "%s/%s.%ld", store, key, syscall(SYS_gettid));
  snprintf(whole, sizeof whole, "%s/%s", store, key);
  FILE *out = fopen(partial, "wb");
  if (!out) abort();
  (*key == 'd' ? copy_names : copy_content)(link, out);
  if (fclose(out)) abort();
  int result = real(descriptor);
  if (!result && rename(partial, whole)) abort();
  return result;
}

int fsync(int descriptor) { return synced("fsync", descriptor); }

int fdatasync(int descriptor) { return synced("fdatasync", descriptor); }
