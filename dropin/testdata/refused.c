// A program without devices, because IBVERBX_ADDR names none of the host's addresses, whose child tries again. It exits with 0 if the child
// gets ENODEV without a call of the Go runtime, which lacks its threads there.
#include <errno.h>
#include <infiniband/verbs.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void)
{
	int status;
	if (ibv_get_device_list(NULL) || errno == ENODEV)
		return 1;
	pid_t pid = fork();
	if (pid == 0)
		_exit(ibv_get_device_list(NULL) || errno != ENODEV);
	return pid < 0 || waitpid(pid, &status, 0) != pid || status != 0;
}
