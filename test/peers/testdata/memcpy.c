// memcpy SIZE SECONDS: copies SIZE bytes between two buffers for a while and prints bytes per second.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

int main(int argc, char **argv)
{
	if (argc != 3) {
		fprintf(stderr, "usage: memcpy SIZE SECONDS\n");
		return 2;
	}
	size_t size = strtoull(argv[1], NULL, 10);
	double seconds = atof(argv[2]);
	char *from = aligned_alloc(4096, (size + 4095) & ~4095UL), *to = aligned_alloc(4096, (size + 4095) & ~4095UL);
	if (!from || !to)
		return 1;
	memset(from, 1, size);
	memset(to, 2, size);
	for (int i = 0; i < 8; i++)
		memcpy(to, from, size);
	double copied = 0, begin = now(), end = begin;
	// The clock is read once per 16 MiB, at least after each copy.
	int batch = size < (16 << 20) ? (16 << 20) / size : 1;
	while (end - begin < seconds) {
		for (int i = 0; i < batch; i++) {
			memcpy(to, from, size);
			__asm__ volatile("" : : "r"(to) : "memory");
		}
		copied += (double)size * batch;
		end = now();
	}
	printf("%.0f\n", copied / (end - begin));
	return 0;
}
