//! Whether who asked for something is being killed.
//!
//! The kernel says only that a signal came. Programs that handle theirs do not expect lookups and reads of files to fail because of
//! them, as no local file system lets them.

use std::fmt::Display;
use std::time::Duration;

/// How often it is looked whether a process that got some signal is killed after that: the kernel tells of the first one only.
pub(crate) const LOOKS: Duration = Duration::from_millis(500);

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
    let masks = status.lines().filter_map(|line| line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:")));
    let masks = masks.filter_map(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    masks.fold(0, |all, mask| all | mask) & SIGKILL != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sigkill_counts() {
        let status =
            |own: u64, all: u64| format!("Name:\tx\nSigPnd:\t{own:016x}\nShdPnd:\t{all:016x}\nSigBlk:\t0100\n");
        for signal in 1..=64 {
            let mask = 1u64 << (signal - 1);
            assert_eq!(has_sigkill(&status(mask, 0)), signal == 9, "{signal}");
            assert_eq!(has_sigkill(&status(0, mask)), signal == 9, "{signal}");
        }
        assert!(has_sigkill(&status(1 << 14, u64::MAX)));
        assert!(!has_sigkill("SigPnd:\tno number\nShdPnd:") && !has_sigkill(""));
    }

    #[test]
    fn who_runs_is_not_killed() {
        assert!(!is_killed(std::process::id()));
        assert!(has_sigkill(
            &status("self").unwrap().replace("ShdPnd:\t0000000000000000", "ShdPnd:\t0000000000000100")
        ));
        assert!(is_killed(0), "nothing is known of it");
    }
}
