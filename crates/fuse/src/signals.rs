//! What signals there are for who asked for something.
//!
//! The kernel says only that a signal came. Programs that handle theirs do not expect lookups and reads of files to fail because of
//! them, as no local file system lets them.

use std::fmt::Display;
use std::time::Duration;

/// How often it is looked: the kernel tells of the first signal only, and over io_uring not always of that.
pub(crate) const LOOKS: Duration = Duration::from_millis(500);

/// Whether there is a signal for this thread that interrupts what it waits for.
pub(crate) fn is_signalled(thread: u32) -> bool {
    status(thread).is_ok_and(|status| of_thread(&status) != 0)
}

/// SIGKILL in the masks of signals that the kernel shows: that of signal 1 is the lowest bit.
const SIGKILL: u64 = 1 << (9 - 1);

/// Whether this thread waits to be killed (proc(5)). Of those that cannot be seen from here, in other PID namespaces (0 for FUSE),
/// it is believed: they could not be ended otherwise.
pub(crate) fn is_killed(thread: u32) -> bool {
    thread == 0 || status(thread).is_ok_and(|status| has_sigkill(&status))
}

fn status(thread: impl Display) -> std::io::Result<String> {
    std::fs::read_to_string(format!("/proc/{thread}/status"))
}

fn has_sigkill(status: &str) -> bool {
    of_thread(status) & SIGKILL != 0
}

/// The signals that a thread with this `/proc/<thread>/status` has to deal with.
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
    fn only_sigkill_counts() {
        let status =
            |own: u64, all: u64| format!("Name:\tx\nSigPnd:\t{own:016x}\nShdPnd:\t{all:016x}\nSigBlk:\t0200\n");
        for signal in 1..=64 {
            let mask = 1u64 << (signal - 1);
            assert_eq!(has_sigkill(&status(mask, 0)), signal == 9, "{signal}");
            assert_eq!(has_sigkill(&status(0, mask)), signal == 9, "{signal}");
        }
        assert!(has_sigkill(&status(1 << 14, u64::MAX)));
        assert_eq!(of_thread(&status(0x201, 0x202)), 3, "what is blocked interrupts nobody");
        assert!(!has_sigkill("SigPnd:\tno number\nShdPnd:") && !has_sigkill(""));
    }

    #[test]
    fn who_runs_is_not_killed() {
        assert!(!is_killed(std::process::id()) && !is_signalled(std::process::id()));
        assert!(has_sigkill(
            &status("self").unwrap().replace("ShdPnd:\t0000000000000000", "ShdPnd:\t0000000000000100")
        ));
        assert!(is_killed(0) && !is_signalled(0), "nothing is known of it");
    }
}
