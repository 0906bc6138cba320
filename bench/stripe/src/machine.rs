//! Machine facts for the report of the benchmark: processors, memory, kernel and disk.

use record::file_system;
use std::fs;
use std::path::Path;

/// Returns the names and values of the machine facts, in the order of the report; `dir` is the directory of the stores.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fact_is_known() {
        assert!(facts(Path::new("/")).iter().all(|(_, value)| !value.is_empty()));
    }
}
