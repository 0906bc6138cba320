//! Storage backends of a replay: a Weir file system through the client, or any directory through the kernel.

use super::Sums;
use crate::copy::temporary_name;
use crate::failure::Failure;
use bytes::Bytes;
use client::{CreateOptions, File, Mount, Node, Options, Target, in_doubt};
use rustix::fs::{AtFlags, Mode, OFlags};
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use tokio::runtime::Handle;

/// The directory in which a replay makes its files, in Weir or on this machine.
pub enum Place {
    /// A directory of a Weir file system, which the replay uses through the client library.
    Weir {
        /// The URL of the directory.
        target: Target,
        /// The options of the mount of each client.
        options: Box<Options>,
        /// Whether a client sends each write at once and waits for the reply, instead of gathering writes.
        each: bool,
        /// The tokio runtime in which the requests of the clients run.
        runtime: Handle,
    },
    /// A directory of this machine, in any file system, which the replay uses through the kernel.
    Local {
        /// The path of the directory.
        dir: PathBuf,
        /// Whether the clients open files with O_DIRECT.
        odirect: bool,
    },
}

/// A temporary directory of the replay, in the directory that the user named.
pub(super) enum TempDir<'a> {
    Weir { target: &'a Target, options: &'a Options, each: bool, runtime: &'a Handle, name: Vec<u8> },
    Local { dir: PathBuf, odirect: bool },
}

/// The connection of one client to the temporary directory: a mount, or a descriptor of the directory.
pub(super) enum Connection {
    Weir { mount: Mount, dir: Node, each: bool, runtime: Handle },
    Local { dir: OwnedFd, odirect: bool },
}

/// A file that a client has opened, in Weir or on this machine.
pub(super) enum Opened {
    Weir(Box<File>),
    Local(std::fs::File),
}

impl<'a> TempDir<'a> {
    pub(super) fn make(place: &'a Place) -> Result<TempDir<'a>, Failure> {
        let name = temporary_name()?;
        match place {
            Place::Weir { target, options, each, runtime } => {
                let temporary = TempDir::Weir { target, options, each: *each, runtime, name: name.clone() };
                let made = runtime.block_on(async {
                    let mount = Mount::connect(target, Options::clone(options)).await?;
                    let (parent, _) = mount.resolve(target.path(), true).await?;
                    mount.mkdir(&parent, &name, 0o700).await?;
                    mount.disconnect().await
                });
                made.map(|()| temporary).map_err(|e| Failure::from(e).about(target))
            }
            Place::Local { dir, odirect } => {
                let dir = dir.join(OsStr::from_bytes(&name));
                std::fs::create_dir(&dir).map_err(|e| Failure::from(e).about(dir.display()))?;
                Ok(TempDir::Local { dir, odirect: *odirect })
            }
        }
    }

    /// Opens the temporary directory for one more client.
    pub(super) fn enter(&self) -> Result<Connection, Failure> {
        match self {
            TempDir::Weir { target, options, each, runtime, name } => runtime.block_on(async {
                let mount = Mount::connect(target, (*options).clone()).await?;
                let path = [target.path(), std::slice::from_ref(name)].concat();
                let (dir, _) = mount.resolve(&path, false).await?;
                Ok(Connection::Weir { mount, dir, each: *each, runtime: (*runtime).clone() })
            }),
            TempDir::Local { dir, odirect } => {
                let dir = rustix::fs::open(dir, OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
                Ok(Connection::Local { dir, odirect: *odirect })
            }
        }
    }

    /// Removes the temporary directory of the replay and everything in it.
    pub(super) fn remove(&self) -> Result<(), Failure> {
        let (target, name) = match self {
            TempDir::Weir { target, name, .. } => (target, name),
            TempDir::Local { dir, .. } => {
                return std::fs::remove_dir_all(dir).map_err(|e| Failure::from(e).about(dir.display()));
            }
        };
        let Connection::Weir { mount, dir, runtime, .. } = self.enter()? else { return Ok(()) };
        let removed = runtime.block_on(async {
            let mut pages = mount.readdir(&dir);
            let mut names = Vec::new();
            while let Some(page) = pages.next_page().await? {
                names.extend(page.into_iter().map(|entry| (entry.node.id, entry.name)));
            }
            for (id, name) in names {
                in_doubt::remove(&mount, id, &dir, &name).await?;
            }
            let (parent, _) = mount.resolve(target.path(), true).await?;
            in_doubt::remove(&mount, dir.id, &parent, name).await?;
            mount.disconnect().await
        });
        removed.map_err(|e| Failure::from(e).about(format_args!("removing the files of the replay in {target}")))
    }
}

impl Connection {
    /// Returns the counters of this client. For a directory of this machine, all counters are zero.
    pub(super) fn sums(&self) -> Sums {
        match self {
            Connection::Weir { mount, .. } => Sums::of(mount.counters()),
            Connection::Local { .. } => Sums::default(),
        }
    }

    /// Returns the write threshold that this client uses now; `None` for a directory of this machine.
    pub(super) fn threshold(&self) -> Option<u64> {
        match self {
            Connection::Weir { mount, .. } => Some(mount.write_threshold()),
            Connection::Local { .. } => None,
        }
    }

    /// Opens a file for reading and writing, and creates the file if it does not exist.
    pub(super) fn open(&self, name: &str) -> Result<Opened, Failure> {
        match self {
            Connection::Weir { mount, dir, runtime, .. } => {
                let file = runtime.block_on(mount.create(dir, name.as_bytes(), CreateOptions::default()))?;
                Ok(Opened::Weir(Box::new(file)))
            }
            Connection::Local { dir, odirect } => {
                let around = if *odirect { OFlags::DIRECT } else { OFlags::empty() };
                let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | around;
                let file = rustix::fs::openat(dir, name, flags, Mode::from_raw_mode(0o644))?;
                Ok(Opened::Local(file.into()))
            }
        }
    }

    pub(super) fn remove(&self, name: &str) -> Result<(), Failure> {
        match self {
            Connection::Weir { mount, dir, runtime, .. } => Ok(runtime.block_on(mount.remove(dir, name.as_bytes()))?),
            Connection::Local { dir, .. } => Ok(rustix::fs::unlinkat(dir, name, AtFlags::empty())?),
        }
    }

    pub(super) fn write(&self, file: &Opened, offset: u64, data: Bytes) -> Result<(), Failure> {
        match (self, file) {
            (Connection::Weir { each, runtime, .. }, Opened::Weir(file)) => runtime.block_on(async {
                file.write_at(offset, data).await?;
                match each {
                    true => Ok(file.push().await?),
                    false => Ok(()),
                }
            }),
            (_, Opened::Local(file)) => Ok(std::os::unix::fs::FileExt::write_all_at(file, &data, offset)?),
            (Connection::Local { .. }, Opened::Weir(_)) => {
                Err(Failure::new("the file belongs to another target of the replay"))
            }
        }
    }

    /// Reads `len` bytes at `offset`, or fewer at the end of the file. Returns the number of bytes read. A read from
    /// Weir stores the bytes in `buffer` only if `keep` is set; a local read always does.
    pub(super) fn read(
        &self,
        file: &Opened,
        (offset, len): (u64, usize),
        buffer: &mut Buffer,
        keep: bool,
    ) -> Result<usize, Failure> {
        match (self, file) {
            (Connection::Weir { runtime, .. }, Opened::Weir(file)) => {
                let found = runtime.block_on(file.read_at(offset, len))?;
                if keep {
                    let bytes = found.to_vec();
                    buffer.space(bytes.len()).copy_from_slice(&bytes);
                }
                Ok(found.len() as usize)
            }
            (_, Opened::Local(file)) => Ok(read_full(file, offset, buffer.space(len))?),
            (Connection::Local { .. }, Opened::Weir(_)) => {
                Err(Failure::new("the file belongs to another target of the replay"))
            }
        }
    }

    pub(super) fn fsync(&self, file: &Opened) -> Result<(), Failure> {
        match (self, file) {
            (Connection::Weir { runtime, .. }, Opened::Weir(file)) => Ok(runtime.block_on(file.fsync())?),
            (_, Opened::Local(file)) => Ok(file.sync_all()?),
            (Connection::Local { .. }, Opened::Weir(_)) => {
                Err(Failure::new("the file belongs to another target of the replay"))
            }
        }
    }

    /// Closes a file. For a file in Weir, the close reports an error if an earlier write has failed.
    pub(super) fn close(&self, file: Opened) -> Result<(), Failure> {
        match (self, file) {
            (Connection::Weir { runtime, .. }, Opened::Weir(file)) => Ok(runtime.block_on(file.close())?),
            (_, file) => {
                drop(file);
                Ok(())
            }
        }
    }

    /// Ends the session of this client. If the server does not answer, the session ends with its lease.
    pub(super) fn leave(self) {
        if let Connection::Weir { mount, runtime, .. } = self
            && let Err(error) = runtime.block_on(mount.disconnect())
        {
            tracing::debug!(%error, "cannot end a session of the replay");
        }
    }
}

fn read_full(file: &std::fs::File, offset: u64, space: &mut [u8]) -> std::io::Result<usize> {
    let mut done = 0;
    while done < space.len() {
        match std::os::unix::fs::FileExt::read_at(file, &mut space[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

/// A reusable page-aligned buffer, as O_DIRECT requires.
#[derive(Default)]
pub(super) struct Buffer {
    room: Vec<u8>,
}

impl Buffer {
    /// Returns the first `len` bytes of the buffer, and enlarges the buffer if it is shorter.
    pub(super) fn space(&mut self, len: usize) -> &mut [u8] {
        const PAGE: usize = 4096;
        if self.room.len() < len + PAGE {
            self.room.resize(len + PAGE, 0);
        }
        let from = self.room.as_ptr().align_offset(PAGE).min(PAGE);
        &mut self.room[from..from + len]
    }
}
