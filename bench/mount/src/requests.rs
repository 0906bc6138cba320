//! Counter of the FUSE requests that the kernel sends to mounts, based on the kernel's tracepoint `fuse_request_send`.

use crate::Outcome;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const INSTANCES: &str = "/sys/kernel/tracing/instances";
const EVENT: &str = "events/fuse/fuse_request_send/enable";
/// Size of the trace buffer for each processor, in KiB. The longest row has 131072 requests, each of about 40 bytes in
/// the buffer.
const BUFFER: &str = "8192";

/// The number of FUSE requests of each kind.
pub type Requests = BTreeMap<String, u64>;

/// A trace instance of the kernel's tracefs; dropping the value removes the instance.
pub struct Counter(PathBuf);

impl Counter {
    /// Creates the trace instance and starts to count.
    pub fn start() -> Outcome<Counter> {
        let dir = Path::new(INSTANCES).join(format!("bench-mount-{}", std::process::id()));
        fs::create_dir(&dir).map_err(|e| format!("{}: {e} (only root may trace the kernel)", dir.display()))?;
        let counter = Counter(dir);
        fs::write(counter.0.join("buffer_size_kb"), BUFFER)?;
        fs::write(counter.0.join(EVENT), "1").map_err(|e| format!("{EVENT}: {e} (Linux 6.12 or newer has it)"))?;
        Ok(counter)
    }

    /// Resets the counts of requests.
    pub fn clear(&self) -> Outcome<()> {
        File::create(self.0.join("trace"))?;
        Ok(())
    }

    /// Returns the counts of the requests that the kernel has sent, since the last [`Self::clear`], to the mount that
    /// contains this directory.
    pub fn of(&self, dir: &Path) -> Outcome<Requests> {
        let connection = u64::from(libc::minor(fs::metadata(dir)?.dev()));
        count(&fs::read_to_string(self.0.join("trace"))?, connection)
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        // Ignore errors: no later code can try again to remove the trace instance.
        let _ = fs::write(self.0.join(EVENT), "0");
        let _ = fs::remove_dir(&self.0);
    }
}

/// Counts the requests of one FUSE connection in the text of a trace.
fn count(trace: &str, connection: u64) -> Outcome<Requests> {
    let mut requests = Requests::new();
    for line in trace.lines() {
        if let Some((_, numbers)) = line.split_once("entries-in-buffer/entries-written: ") {
            let numbers = numbers.split_whitespace().next().and_then(|both| both.split_once('/'));
            if numbers.is_none_or(|(held, written)| held != written) {
                return Err("there were more requests than the kernel's buffer holds: try --quick".into());
            }
        }
        let Some((_, event)) = line.split_once("fuse_request_send: connection ") else { continue };
        let mut words = event.split_whitespace();
        if words.next().and_then(|word| word.parse().ok()) != Some(connection) {
            continue;
        }
        let name =
            event.split_once("(FUSE_").and_then(|(_, rest)| rest.split_once(')')).map_or("other", |(name, _)| name);
        *requests.entry(name.to_owned()).or_default() += 1;
    }
    Ok(requests)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "# tracer: nop\n# entries-in-buffer/entries-written: 4/4   #P:2\n";

    #[test]
    fn requests_of_one_mount_by_kind() {
        let events = "\
            mount-7 [000] ..... 1.0: fuse_request_send: connection 45 req 2 opcode 16 (FUSE_WRITE) len 4176 \n\
            mount-7 [001] ..... 1.1: fuse_request_send: connection 45 req 4 opcode 16 (FUSE_WRITE) len 4176 \n\
            mount-7 [001] ..... 1.2: fuse_request_send: connection 4 req 4 opcode 16 (FUSE_WRITE) len 4176 \n\
            mount-7 [001] ..... 1.3: fuse_request_send: connection 45 req 6 opcode 999 (999) len 40 \n";
        let found = count(&format!("{HEAD}{events}"), 45).unwrap();
        assert_eq!(found, [("WRITE".to_owned(), 2), ("other".to_owned(), 1)].into());
    }

    #[test]
    fn a_buffer_that_was_too_small_is_no_answer() {
        assert!(count(&HEAD.replace("4/4", "4/5"), 45).is_err());
    }
}
