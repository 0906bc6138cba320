//! The name under which the mounts of a directory are known to the mgr, one after the other.
//!
//! A client that comes back under its old name with another verifier has been started anew, and the mgr drops at once what the one before
//! still held (RFC 8881 §18.35.4, case 5): its locks, opens and delegations. Without that, others wait for them until the lease is over. Two
//! clients alive under one name would take everything from each other again and again, so a name is used by who has the lock on its file: the
//! system lets go of it when the process ends, however it does.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read, Seek, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use uuid::Uuid;

/// Longest file of a name: a URL, a path, and the name.
const FILE_MAX: u64 = 16 * 1024;
/// How long a name is waited for that is in use: a process that was killed loses its mount at once, and its files when its last thread has ended.
const ENDING: Duration = Duration::from_secs(2);
/// How often it is looked whether it still is.
const LOOK: Duration = Duration::from_millis(10);

/// A name, and the right to use it while this lives.
pub struct Identity {
    name: [u8; 16],
    path: PathBuf,
    _lock: File,
}

impl Drop for Identity {
    fn drop(&mut self) {
        // Whoever ends in order leaves nothing at the mgr. Who opened this file and has no lock yet may still take the name, and nobody
        // else then has a file with it.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Identity {
    /// The name for a mount of `url` at `dir`. None where it cannot be had, as another process uses it, or nothing can be kept: then a client
    /// is as good as ever, but after it was killed its locks stay for a lease.
    pub fn of_mount(url: &str, dir: &Path) -> Option<Identity> {
        let kept = folder().map_or(Ok(None), |folder| Identity::kept_in(&folder, url, dir, ENDING));
        kept.unwrap_or_else(|error| {
            tracing::debug!("the name of the mount at {} is not kept: {error}", dir.display());
            None
        })
    }

    /// The same, kept in this folder, with so much patience for who uses it.
    fn kept_in(folder: &Path, url: &str, dir: &Path, patience: Duration) -> io::Result<Option<Identity>> {
        let (path, head) = file_of(folder, url, dir)?;
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(true)
            .create(true)
            .mode(0o600)
            .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32);
        let Some(mut file) = locked(&options, &path, patience)? else { return Ok(None) };
        let mut found = Vec::new();
        (&file).take(FILE_MAX).read_to_end(&mut found)?;
        let name = found.strip_prefix(&head[..]).and_then(|name| name.try_into().ok());
        let name = match name {
            Some(name) => name,
            None => {
                // New, another mount's of the same hash, or half written by a process that was killed.
                let name = Uuid::new_v4().into_bytes();
                file.set_len(0)?;
                file.rewind()?;
                file.write_all(&[&head[..], &name].concat())?;
                name
            }
        };
        Ok(Some(Identity { name, path, _lock: file }))
    }

    /// Waits until nobody uses the name for a mount of `url` at `dir`, but not longer than that; whether nobody does.
    pub fn unused(url: &str, dir: &Path, patience: Duration) -> bool {
        folder().is_none_or(|folder| Identity::unused_in(&folder, url, dir, patience))
    }

    /// The same, kept in this folder.
    fn unused_in(folder: &Path, url: &str, dir: &Path, patience: Duration) -> bool {
        // Who ends in order removes it before letting go of it.
        let Ok(file) = file_of(folder, url, dir).and_then(|(path, _)| File::open(path)) else { return true };
        let (done, unused) = std::sync::mpsc::channel();
        std::thread::spawn(move || done.send(file.lock_shared()));
        unused.recv_timeout(patience).is_ok()
    }

    /// What [`client::Options::identity`] takes.
    pub fn name(&self) -> [u8; 16] {
        self.name
    }
}

/// The file at this path, locked; none if it stays in use.
fn locked(options: &OpenOptions, path: &Path, patience: Duration) -> io::Result<Option<File>> {
    let start = Instant::now();
    loop {
        // Each time: who ends in order removes it.
        let file = options.open(path)?;
        match file.try_lock() {
            Ok(()) => return Ok(Some(file)),
            Err(TryLockError::WouldBlock) if start.elapsed() < patience => std::thread::sleep(LOOK),
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
}

/// The file of the name for a mount of `url` at `dir`, and what it begins with.
fn file_of(folder: &Path, url: &str, dir: &Path) -> io::Result<(PathBuf, Vec<u8>)> {
    // However it is written, with a slash at the end or without.
    let place = fuse::place_of(&std::path::absolute(dir)?.components().collect::<PathBuf>())?;
    let mut head = url.as_bytes().to_vec();
    head.push(b'\n');
    head.extend_from_slice(place.as_os_str().as_bytes());
    head.push(b'\n');
    let mut hash = DefaultHasher::new();
    head.hash(&mut hash);
    Ok((folder.join(format!("{:016x}", hash.finish())), head))
}

/// Where names are kept: in memory, as a machine that was started anew may be another one with a copy of the disk. None if there is no place
/// that only this user can write to.
fn folder() -> Option<PathBuf> {
    let user = rustix::process::geteuid();
    let above = if user.is_root() { PathBuf::from("/run") } else { std::env::var_os("XDG_RUNTIME_DIR")?.into() };
    let folder = above.join("weir/mounts");
    DirBuilder::new().recursive(true).mode(0o700).create(&folder).ok()?;
    let found = std::fs::symlink_metadata(&folder).ok()?;
    (found.is_dir() && found.uid() == user.as_raw() && found.mode() & 0o022 == 0).then_some(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(folder: &Path, url: &str, dir: &str) -> Option<Identity> {
        Identity::kept_in(folder, url, Path::new(dir), Duration::ZERO).unwrap()
    }

    /// Ends without a word, as a process does that is killed; its name.
    fn kill(identity: Identity) -> [u8; 16] {
        let whole = std::fs::read(&identity.path).unwrap();
        let (name, path) = (identity.name, identity.path.clone());
        drop(identity);
        assert!(!path.exists());
        std::fs::write(path, whole).unwrap();
        name
    }

    #[test]
    fn a_name_stays_with_its_place_and_has_one_user() {
        let folder = tempfile::tempdir().unwrap();
        let get = |url, dir| get(folder.path(), url, dir);
        let first = get("weir://a/", "/mnt").unwrap();
        assert!(get("weir://a/", "/mnt").is_none(), "it is in use");
        let others = [get("weir://b/", "/mnt").unwrap(), get("weir://a/", "/mnt2").unwrap()];
        assert!(others.iter().all(|other| other.name() != first.name()) && others[0].name() != others[1].name());
        let name = kill(first);
        let second = get("weir://a/", "//mnt/").unwrap();
        assert_eq!(second.name(), name);
        drop(second);
        assert_ne!(get("weir://a/", "/mnt").unwrap().name(), name);
    }

    #[test]
    fn a_name_is_waited_for_while_its_user_ends() {
        let folder = tempfile::tempdir().unwrap();
        let first = get(folder.path(), "weir://a/", "/mnt").unwrap();
        let path = first.path.clone();
        let name = kill(first);
        // All that is left of a process that was killed, for a while.
        let ending = File::open(&path).unwrap();
        ending.lock().unwrap();
        let open = || {
            let all = std::fs::read_dir("/proc/self/fd").unwrap();
            all.filter(|fd| fd.as_ref().is_ok_and(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to == path)))
                .count()
        };
        let next = |patience| Identity::kept_in(folder.path(), "weir://a/", Path::new("/mnt"), patience).unwrap();
        assert!(next(Duration::ZERO).is_none());
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| next(Duration::MAX).unwrap().name());
            // It has found it in use.
            while open() < 2 && !waits.is_finished() {
                std::thread::yield_now();
            }
            drop(ending);
            assert_eq!(waits.join().unwrap(), name);
        });
    }

    #[test]
    fn who_waits_for_the_end_of_a_mount_sees_it() {
        let folder = tempfile::tempdir().unwrap();
        let unused = |patience| Identity::unused_in(folder.path(), "weir://a/", Path::new("/mnt/"), patience);
        assert!(unused(Duration::ZERO), "nobody ever used it");
        let identity = get(folder.path(), "weir://a/", "/mnt").unwrap();
        assert!(!unused(Duration::ZERO));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| unused(Duration::MAX));
            drop(identity);
            assert!(waits.join().unwrap());
        });
        kill(get(folder.path(), "weir://a/", "/mnt").unwrap());
        assert!(unused(Duration::MAX), "what is left of a process that was killed");
    }

    #[test]
    fn a_file_that_makes_no_sense_is_written_anew() {
        let folder = tempfile::tempdir().unwrap();
        let get = || get(folder.path(), "weir://a/", "/mnt").unwrap();
        let first = get();
        let path = first.path.clone();
        let name = kill(first);
        let whole = std::fs::read(&path).unwrap();
        for wrong in [&whole[..whole.len() - 1], &whole[1..], &[&whole[..], b"x"].concat(), b"", &[7; 40_000]] {
            std::fs::write(&path, wrong).unwrap();
            let new = kill(get());
            assert!(new != name && new == get().name());
        }
        std::fs::write(&path, &whole).unwrap();
        assert_eq!(get().name(), name);
    }
}
