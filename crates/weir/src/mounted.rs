//! A mount that this process serves: from its start to its end, by whoever ends it.

use crate::failure::{Exit, Failure, Outcome};
use client::{Mount, Node};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// A mount that this process serves.
pub struct Mounting {
    mounted: fuse::Mounted,
    dir: PathBuf,
}

impl Mounting {
    /// Mounts what is below `root` at a directory. Must run inside a tokio runtime.
    pub fn start(mount: Mount, root: Node, dir: &Path, config: fuse::Config) -> Result<Self, Failure> {
        let mounted = fuse::Mounted::start(mount, root, dir, config).map_err(|error| match error.kind() {
            ErrorKind::NotFound => Failure::from(error).next("make the directory first"),
            _ => Failure::from(error),
        })?;
        let dir = mounted.dir().to_owned();
        Ok(Mounting { mounted, dir })
    }

    /// Where it is.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns when it is unmounted: by somebody, or by this when `stop` comes first. While programs use it, it vanishes
    /// from its place and ends with the last of them; `tell` says so to the user.
    pub async fn until(self, stop: impl Future<Output = ()>, tell: bool) -> Outcome {
        let mut ended = std::pin::pin!(self.mounted.ended());
        tokio::select! {
            outcome = &mut ended => return finish(&self.dir, outcome),
            () = stop => {}
        }
        let dir = self.dir.clone();
        let unmounted = tokio::task::spawn_blocking(move || match fuse::unmount(&dir, false) {
            Err(error) if error.kind() == ErrorKind::ResourceBusy => {
                if tell {
                    eprintln!("weir: {} is in use; it vanishes, and ends with its last user", dir.display());
                }
                fuse::unmount(&dir, true)
            }
            outcome => outcome,
        });
        match unmounted.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) if error.kind() == ErrorKind::NotFound => {}
            Ok(Err(error)) => return Err(error.into()),
            Err(error) => return Err(Failure::new(error)),
        }
        finish(&self.dir, ended.await)
    }
}

fn finish(dir: &Path, outcome: std::io::Result<()>) -> Outcome {
    outcome.map(|()| Exit::Done).map_err(|error| Failure::from(error).about(dir.display()))
}
