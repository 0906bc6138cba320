//! Facts about the machine on which the benchmark runs.

use std::fs;
use std::path::Path;

/// Returns names and values of the facts, in the order of the report; `dir` is the directory of the stores.
pub fn facts(dir: &Path) -> Vec<(String, String)> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let after = |text: &str, key: &str| {
        let line = text.lines().find(|line| line.starts_with(key)).unwrap_or_default();
        line.split_once(':').map_or("unknown", |(_, value)| value.trim()).to_owned()
    };
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let load: Vec<String> = read("/proc/loadavg").split(' ').take(3).map(str::to_owned).collect();
    [
        ("cpu", format!("{} x {}", cpus, after(&read("/proc/cpuinfo"), "model name"))),
        ("memory", after(&read("/proc/meminfo"), "MemTotal")),
        ("kernel", format!("Linux {}", read("/proc/sys/kernel/osrelease"))),
        ("stores on", file_system(&read("/proc/mounts"), dir)),
        ("load at start", load.join(" ")),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .to_vec()
}

/// Returns the type of the file system that contains `dir`: that of the longest mount point above `dir`.
fn file_system(mounts: &str, dir: &Path) -> String {
    let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>()).filter(|fields| fields.len() > 2);
    let above = fields.filter(|fields| dir.starts_with(fields[1]));
    above.max_by_key(|fields| fields[1].len()).map_or_else(|| "unknown".to_owned(), |fields| fields[2].to_owned())
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
        assert!(facts(Path::new("/")).iter().all(|(_, value)| !value.is_empty()));
    }
}
