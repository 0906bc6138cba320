//! Threads that make requests to the mount that their own process serves, as any program would.

use std::io;
use std::thread::{self, JoinHandle};

/// Starts a thread that makes requests to the mount of this process.
///
/// If the process is killed, a thread that waits for a reply of its own process continues to wait. The kernel ends
/// such a wait only when no process has the FUSE device open. So the thread must not have the device open: it gets
/// its own descriptor table, with nearly all descriptors closed. The thread must use only descriptors that it has
/// opened itself. So it must not log, wake a task, or drop the last reference to a value that closes a descriptor.
///
/// # Errors
/// The errors of starting a thread.
pub(crate) fn spawn<T: Send + 'static>(
    name: String,
    ask: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let apart = move || {
        // Ignore an error of close_range(2), which Linux before 5.9 does not have. The thread then shares the
        // descriptor table of the process, so it may hang if the process is killed.
        let _ = let_go_of_descriptors();
        ask()
    };
    thread::Builder::new().name(name).spawn(apart)
}

fn let_go_of_descriptors() -> io::Result<()> {
    // SAFETY: all arguments are integers. The call closes only this thread's copies of descriptors, which the thread
    // does not use; all other threads keep their descriptors.
    let done = unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_UNSHARE) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_spawned_thread_has_no_descriptors_and_other_threads_keep_theirs() {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let number = file.as_raw_fd();
        let ask = move || {
            let open: Vec<_> = std::fs::read_dir("/proc/thread-self/fd").unwrap().flatten().collect();
            let above = open.iter().filter(|fd| fd.file_name().to_str().unwrap().parse::<i32>().unwrap() > 2).count();
            (above, std::fs::read_link(format!("/proc/thread-self/fd/{number}")).ok())
        };
        let (above, found) = spawn("asking".to_owned(), ask).unwrap().join().unwrap();
        assert_eq!(above, 1, "only the descriptor of the listing itself is open");
        assert_ne!(found, Some(std::env::current_exe().unwrap()));
        assert!(file.metadata().is_ok());
    }
}
