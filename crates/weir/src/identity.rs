//! The stable client owner of the mounts at one directory, by which the mgr recognises a restarted mount.
//!
//! A client that sends a client owner that the mgr knows, with another verifier, has restarted. The mgr then removes
//! the locks, opens and delegations of the old instance at once (RFC 8881 §18.35.4, case 5). With another client owner,
//! other clients would wait for this state until the lease expires.
//!
//! If two live clients used one client owner, each would repeatedly remove the state of the other. So a process uses a
//! client owner only while it holds the lock on the file of this client owner. The kernel releases the lock when the
//! process ends, even if the process is killed.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read, Seek, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use uuid::Uuid;

/// Maximum size of an identity file in bytes. The file holds a URL, a path, and the client owner.
const FILE_MAX: u64 = 16 * 1024;
/// How long a mount waits for a client owner that another process uses. When the process of a mount is killed, the
/// mount ends at once, but the kernel releases the process's file lock only when the last thread of the process has
/// ended.
const ENDING: Duration = Duration::from_secs(2);
/// Interval between two attempts to lock the file of a client owner that another process uses.
const LOOK: Duration = Duration::from_millis(10);

/// A client owner that this process uses. No other process can use the client owner while this value exists.
pub struct Identity {
    name: [u8; 16],
    path: PathBuf,
    _lock: File,
}

impl Drop for Identity {
    fn drop(&mut self) {
        // Remove the identity file, because a mount that ends cleanly leaves no state at the mgr for a later mount to
        // remove. A process that already waits for the lock on the file may still get the client owner; no other
        // process can open the file any more.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Identity {
    /// Returns the client owner for a mount of `url` at `dir`. Returns `None` if another process uses the client owner,
    /// or the file cannot be written. A mount without a client owner works as usual. But if the mount is killed, the
    /// mgr keeps the locks of the mount until the lease expires.
    pub fn of_mount(url: &str, dir: &Path) -> Option<Identity> {
        let kept = folder().map_or(Ok(None), |folder| Identity::kept_in(&folder, url, dir, ENDING));
        kept.unwrap_or_else(|error| {
            tracing::debug!(dir = %dir.display(), %error, "cannot keep the identity of the mount");
            None
        })
    }

    /// Does the work of [`Identity::of_mount`] with the file in `folder`. If another process uses the client owner,
    /// waits up to `patience` for the end of that process.
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
                // The identity file does not hold a client owner of this mount. The file is new; or it is incomplete,
                // because a process was killed while it wrote the file; or it belongs to another mount whose URL and
                // directory have the same hash, which is the file name.
                let name = Uuid::new_v4().into_bytes();
                file.set_len(0)?;
                file.rewind()?;
                file.write_all(&[&head[..], &name].concat())?;
                name
            }
        };
        Ok(Some(Identity { name, path, _lock: file }))
    }

    /// Waits up to `patience` until no process uses the client owner for a mount of `url` at `dir`. Returns whether the
    /// client owner is unused.
    pub fn unused(url: &str, dir: &Path, patience: Duration) -> bool {
        folder().is_none_or(|folder| Identity::unused_in(&folder, url, dir, patience))
    }

    /// Does the work of [`Identity::unused`] with the file in `folder`.
    fn unused_in(folder: &Path, url: &str, dir: &Path, patience: Duration) -> bool {
        // A missing file means that no process uses the client owner: a mount that ends cleanly removes the file before
        // it releases the lock.
        let Ok(file) = file_of(folder, url, dir).and_then(|(path, _)| File::open(path)) else { return true };
        let (done, unused) = std::sync::mpsc::channel();
        std::thread::spawn(move || done.send(file.lock_shared()));
        unused.recv_timeout(patience).is_ok()
    }

    /// Returns the bytes of the client owner, for [`client::Options::identity`].
    pub fn name(&self) -> [u8; 16] {
        self.name
    }
}

/// Opens and locks the file at `path`. Returns `None` if another process still holds the lock after `patience`.
fn locked(options: &OpenOptions, path: &Path, patience: Duration) -> io::Result<Option<File>> {
    let start = Instant::now();
    loop {
        // Open the file again before each attempt to lock it, because a mount that ends cleanly removes the file, and
        // the next mount creates a new one.
        let file = options.open(path)?;
        match file.try_lock() {
            Ok(()) => return Ok(Some(file)),
            Err(TryLockError::WouldBlock) if start.elapsed() < patience => std::thread::sleep(LOOK),
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
}

/// Returns the path of the identity file for a mount of `url` at `dir`, and the bytes with which this file must begin.
fn file_of(folder: &Path, url: &str, dir: &Path) -> io::Result<(PathBuf, Vec<u8>)> {
    // Normalise the path, so that a slash at the end of `dir` makes no difference.
    let place = fuse::place_of(&std::path::absolute(dir)?.components().collect::<PathBuf>())?;
    let mut head = url.as_bytes().to_vec();
    head.push(b'\n');
    head.extend_from_slice(place.as_os_str().as_bytes());
    head.push(b'\n');
    let mut hash = DefaultHasher::new();
    head.hash(&mut hash);
    Ok((folder.join(format!("{:016x}", hash.finish())), head))
}

/// Returns the folder of the identity files, in a file system that does not survive a reboot. A machine that starts
/// from a copied disk must not reuse the client owners of the original. Returns `None` if no such folder is writable by
/// this user only.
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

    /// Drops an identity without removing its file, as the end of a killed process does. Returns the client owner.
    fn kill(identity: Identity) -> [u8; 16] {
        let whole = std::fs::read(&identity.path).unwrap();
        let (name, path) = (identity.name, identity.path.clone());
        drop(identity);
        assert!(!path.exists());
        std::fs::write(path, whole).unwrap();
        name
    }

    #[test]
    fn a_client_owner_is_kept_for_its_directory_and_has_one_user() {
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
    fn a_mount_waits_while_a_killed_process_still_holds_the_lock() {
        let folder = tempfile::tempdir().unwrap();
        let first = get(folder.path(), "weir://a/", "/mnt").unwrap();
        let path = first.path.clone();
        let name = kill(first);
        // Hold the lock on the identity file, like a killed process whose last thread has not ended yet.
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
            // Wait until the thread that asks for the client owner has found that the identity file is locked.
            while open() < 2 && !waits.is_finished() {
                std::thread::yield_now();
            }
            drop(ending);
            assert_eq!(waits.join().unwrap(), name);
        });
    }

    #[test]
    fn unused_returns_true_when_the_mount_has_ended() {
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
    fn an_invalid_identity_file_is_replaced() {
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
