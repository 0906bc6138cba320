//! Pending signals of the callers of requests.
//!
//! The kernel reports that a signal arrived, but not which signal. Programs that handle signals do not expect lookups
//! and reads of files to fail with EINTR, because no local file system does this. So the mount reads the pending
//! signals itself, and abandons lookups and reads only after SIGKILL.

use std::fmt::Display;
use std::time::Duration;

/// The interval between checks for signals. The kernel reports only the first signal of a caller, and over io_uring
/// sometimes not even the first.
pub(crate) const LOOKS: Duration = Duration::from_millis(500);

/// Returns whether a pending signal interrupts the wait of this thread.
pub(crate) fn is_signalled(thread: u32) -> bool {
    status(thread).is_ok_and(|status| of_thread(&status) != 0)
}

/// SIGKILL in the kernel's signal masks, in which signal 1 is the lowest bit.
const SIGKILL: u64 = 1 << (9 - 1);

/// Returns whether SIGKILL is pending for this thread (proc(5)). Returns true for threads in PID namespaces that this
/// process cannot see (FUSE sends the id 0), because the mount could never abandon their requests otherwise.
pub(crate) fn is_killed(thread: u32) -> bool {
    thread == 0 || status(thread).is_ok_and(|status| has_sigkill(&status))
}

fn status(thread: impl Display) -> std::io::Result<String> {
    std::fs::read_to_string(format!("/proc/{thread}/status"))
}

fn has_sigkill(status: &str) -> bool {
    of_thread(status) & SIGKILL != 0
}

/// Returns the mask of pending, unblocked signals from the content of `/proc/<thread>/status`.
fn of_thread(status: &str) -> u64 {
    let mask = |name| {
        let mask = status.lines().find_map(|line| line.strip_prefix(name));
        mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
    };
    (mask("SigPnd:") | mask("ShdPnd:")) & !mask("SigBlk:")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_pending_sigkill_counts() {
        let status =
            |own: u64, all: u64| format!("Name:\tx\nSigPnd:\t{own:016x}\nShdPnd:\t{all:016x}\nSigBlk:\t0200\n");
        for signal in 1..=64 {
            let mask = 1u64 << (signal - 1);
            assert_eq!(has_sigkill(&status(mask, 0)), signal == 9, "{signal}");
            assert_eq!(has_sigkill(&status(0, mask)), signal == 9, "{signal}");
        }
        assert!(has_sigkill(&status(1 << 14, u64::MAX)));
        assert_eq!(of_thread(&status(0x201, 0x202)), 3, "a blocked signal interrupts no thread");
        assert!(!has_sigkill("SigPnd:\tno number\nShdPnd:") && !has_sigkill(""));
    }

    #[test]
    fn a_running_thread_is_not_being_killed() {
        assert!(!is_killed(std::process::id()) && !is_signalled(std::process::id()));
        assert!(has_sigkill(
            &status("self").unwrap().replace("ShdPnd:\t0000000000000000", "ShdPnd:\t0000000000000100")
        ));
        assert!(is_killed(0) && !is_signalled(0), "the thread is unknown");
    }
}
