//! Credentials of callers. The mount sends each request to the servers with the user and groups of the process that
//! made the request.

use crate::request::Header;
use client::Mount;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use types::Cred;

/// Largest number of credentials whose client mounts are cached.
const KEPT: usize = 1024;

/// A client mount that acts with the credentials of many callers.
pub(crate) struct Callers {
    mount: Mount,
    known: Mutex<HashMap<Cred, Mount>>,
}

impl Callers {
    /// Creates the table of callers for a client mount.
    pub(crate) fn new(mount: Mount) -> Self {
        Callers { mount, known: Mutex::default() }
    }

    /// Returns the client mount with the credentials of the mount process.
    pub(crate) fn anybody(&self) -> &Mount {
        &self.mount
    }

    /// Returns the client mount with the credentials of the caller of a request.
    pub(crate) fn of(&self, header: &Header) -> Mount {
        // Root passes permission checks without supplementary groups, so do not read the groups.
        let groups = if header.uid == 0 { Vec::new() } else { groups(header.pid) };
        let cred = Cred { uid: header.uid, gid: header.gid, groups };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mount) = known.get(&cred) {
            return mount.clone();
        }
        if known.len() >= KEPT {
            known.clear();
        }
        let mount = self.mount.acting_as(&cred);
        known.insert(cred, mount.clone());
        mount
    }
}

/// Returns the supplementary groups of a thread, which FUSE requests do not contain. Returns none if the thread has
/// ended or is not visible. The result is not cached, because a process may change its groups at any time.
fn groups(pid: u32) -> Vec<u32> {
    if pid == 0 {
        return Vec::new();
    }
    let status = std::fs::read(format!("/proc/{pid}/status")).unwrap_or_default();
    groups_in(&status)
}

fn groups_in(status: &[u8]) -> Vec<u32> {
    let line = status.split(|b| *b == b'\n').find_map(|line| line.strip_prefix(b"Groups:"));
    let text = line.and_then(|line| std::str::from_utf8(line).ok()).unwrap_or_default();
    text.split_whitespace().filter_map(|group| group.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_groups_of_a_process_are_read() {
        let status = b"Name:\tsh\nUid:\t1\t1\t1\t1\nGroups:\t4 24 1000 \nNStgid:\t7\n";
        assert_eq!(groups_in(status), [4, 24, 1000]);
        assert_eq!(groups_in(b"Groups:\t \n"), [0; 0]);
        assert_eq!(groups_in(b""), [0; 0]);
    }
}
