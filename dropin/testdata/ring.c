// An MPI program: every rank sends to the next one and compares what it gets.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { bytes = 1 << 20, rounds = 10 };

int main(int argc, char **argv)
{
	int rank, ranks, sum, mine;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	int to = (rank + 1) % ranks, from = (rank + ranks - 1) % ranks;
	char *buf = malloc(bytes);
	for (int k = 0; k < rounds; k++) {
		memset(buf, rank * 31 + k, bytes);
		MPI_Sendrecv_replace(buf, bytes, MPI_CHAR, to, k, from, k, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		for (int i = 0; i < bytes; i++)
			if (buf[i] != (char)(from * 31 + k)) {
				fprintf(stderr, "rank %d: byte %d of round %d is wrong\n", rank, i, k);
				MPI_Abort(MPI_COMM_WORLD, 1);
			}
	}
	mine = rank + 1;
	MPI_Allreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	if (!rank)
		printf("%d ranks, sum %d\n", ranks, sum);
	MPI_Finalize();
	free(buf);
	return sum != ranks * (ranks + 1) / 2;
}
