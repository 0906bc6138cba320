//! Machine of a measurement: its hardware and kernel, and the share of its processors that other programs use.

use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;
use std::time::Duration;

/// The machine of a measurement. A fact that was not recorded has the value "unknown".
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// The number of processors; `None` if the number was not recorded.
    pub cpus: Option<u32>,
    /// The model of the processors.
    pub cpu: String,
    /// The size of the memory, with its unit.
    pub memory: String,
    /// The release of the kernel.
    pub kernel: String,
    /// The type of the file system that contains the stores.
    pub disk: String,
}

impl Machine {
    /// Returns the facts of this machine; `disk` is the type of the file system that contains `dir`.
    pub fn here(dir: &Path) -> Machine {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let kib: Option<u64> =
            field(&read("/proc/meminfo"), "MemTotal").and_then(|text| text.split(' ').next()?.parse().ok());
        Machine {
            cpus: std::thread::available_parallelism().ok().map(|cpus| cpus.get() as u32),
            cpu: field(&read("/proc/cpuinfo"), "model name").unwrap_or_else(unknown),
            memory: kib.map_or_else(unknown, |kib| format!("{} GiB", (kib + (1 << 19)) >> 20)),
            kernel: format!("Linux {}", read("/proc/sys/kernel/osrelease").trim()),
            disk: file_system(&read("/proc/mounts"), dir),
        }
    }
}

fn unknown() -> String {
    "unknown".to_owned()
}

/// Returns the value after `key` in the first line that begins with `key`.
fn field(text: &str, key: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with(key))?;
    line.split_once(':').map(|(_, value)| value.trim().to_owned())
}

/// Returns the type of the file system that contains `dir`, for example `ext4`, or "unknown". `mounts` is the text of
/// `/proc/mounts`; the longest mount point that is a prefix of `dir` determines the type.
pub fn file_system(mounts: &str, dir: &Path) -> String {
    let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>()).filter(|fields| fields.len() > 2);
    let above = fields.filter(|fields| dir.starts_with(fields[1]));
    above.max_by_key(|fields| fields[1].len()).map_or_else(unknown, |fields| fields[2].to_owned())
}

/// Measures for a second which share of the processors is busy. Call this function before the benchmark loads the
/// machine, so that the result is the share of other programs.
pub fn other_work() -> f64 {
    let before = fs::read_to_string("/proc/stat").unwrap_or_default();
    std::thread::sleep(Duration::from_secs(1));
    busy(&before, &fs::read_to_string("/proc/stat").unwrap_or_default())
}

/// Returns the share of the time between two readings of `/proc/stat` that was neither idle time nor wait for disks.
fn busy(before: &str, after: &str) -> f64 {
    let times = |text: &str| -> Vec<f64> {
        let line = text.lines().next().unwrap_or_default();
        line.split_whitespace().skip(1).take(8).filter_map(|word| word.parse().ok()).collect()
    };
    let spent: Vec<f64> = times(before).iter().zip(times(after)).map(|(a, b)| b - a).collect();
    let (all, idle) = (spent.iter().sum::<f64>(), spent.iter().skip(3).take(2).sum::<f64>());
    if all > 0.0 { 1.0 - idle / all } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_mount_point_counts() {
        let mounts = "a / ext4 rw 0 0\nb /dev/shm tmpfs rw 0 0\nc /dev devtmpfs rw 0 0\n";
        assert_eq!(file_system(mounts, Path::new("/dev/shm/x")), "tmpfs");
        assert_eq!(file_system(mounts, Path::new("/srv")), "ext4");
        assert_eq!(file_system("", Path::new("/srv")), "unknown");
    }

    #[test]
    fn idle_time_and_waiting_for_disks_are_no_work() {
        assert_eq!(busy("cpu 0 0 0 0 0 0 0 0\n", "cpu 10 5 5 70 10 0 0 0\n"), 1.0 - 0.8);
        assert_eq!(busy("", ""), 1.0);
    }
}
