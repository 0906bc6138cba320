//! Every regular file: its layout, and the object that must hold the last byte known to be on a disk.
//!
//! More cannot be told from here: a file may have holes, and where it has one no object need be. What lies below the
//! last byte in other objects is not known to have been written.

use super::finding::Kind;
use super::run::{Check, Checked};
use crate::iods::Asked;
use crate::proxy::Objects;
use futures_util::{StreamExt, stream};
use layout::kinds::native::KIND;
use meta::FileState;
use types::{FileId, IodId, Status};
use wire::admin::Finding;

/// Inodes looked at in one go.
const PAGE: usize = 512;
/// Files whose iods are asked at a time.
const AT_ONCE: usize = 32;
/// How often a file that changes under the check is looked at.
const TRIES: usize = 4;

/// What one file is like.
enum Look {
    Fine,
    Found(Finding),
    /// The iod that must hold its last byte cannot be asked.
    Unasked(u16, IodId),
}

impl Check {
    pub(super) async fn files(&mut self) -> Checked {
        let total = self.room.namespace.files().unwrap_or(0);
        self.begin("files", total).await?;
        let mut after = Some(FileId(0));
        while let Some(from) = after {
            let (files, next) = self.room.namespace.files_after(from, PAGE)?;
            after = next;
            self.counts.files += files.len() as u64;
            let looked = files.len() as u64;
            let looks: Vec<_> = files.into_iter().map(|file| self.file(file)).collect();
            let looks: Vec<Result<Look, Status>> = stream::iter(looks).buffered(AT_ONCE).collect().await;
            for look in looks {
                match look? {
                    Look::Fine => {}
                    Look::Found(finding) if self.repair => self.mended(finding, Ok(false)).await?,
                    Look::Found(finding) => self.found(finding).await?,
                    Look::Unasked(number, id) => {
                        self.counts.unasked += 1;
                        self.unreached(number, id).await?;
                    }
                }
            }
            self.looked(looked).await?;
        }
        Ok(())
    }

    /// Looks at a file until it stays the same meanwhile.
    async fn file(&self, mut file: FileState) -> Result<Look, Status> {
        for _ in 0..TRIES {
            let look = self.look(&file).await?;
            if matches!(look, Look::Fine) {
                return Ok(look);
            }
            match self.room.namespace.file_state(file.id)? {
                None => return Ok(Look::Fine),
                Some(now) if now == file => return Ok(look),
                Some(now) => file = now,
            }
        }
        // Whoever changes it all the time would notice.
        Ok(Look::Fine)
    }

    async fn look(&self, file: &FileState) -> Result<Look, Status> {
        let found = |kind: Kind, iod, text: String| Ok(Look::Found(kind.found(Some(file.id), iod, text)));
        let Some(layout) = file.layout.as_ref().filter(|layout| layout.is_final()) else {
            return match file.written {
                0 => Ok(Look::Fine),
                written => {
                    found(Kind::LayoutMissing, None, format!("{written} bytes were written, nobody knows where"))
                }
            };
        };
        if layout.kind != KIND {
            return found(
                Kind::LayoutDamaged,
                None,
                format!("its layout is of kind {}, which is not known", layout.kind),
            );
        }
        let objects = match Objects::new(&self.room.iods, file.id, file.generation, layout) {
            Ok(objects) => objects,
            Err(_) => return found(Kind::LayoutDamaged, None, "its layout cannot be read".to_owned()),
        };
        for number in &objects.record.iods {
            if self.room.iods.registered(*number).is_err() {
                return found(
                    Kind::LayoutUnknownIod,
                    None,
                    format!("it is striped over iod {number}, which is not known"),
                );
            }
        }
        let Some(last) = file.written.checked_sub(1) else { return Ok(Look::Fine) };
        let place = objects.distribution.place(last);
        let range = (last - place.offset % objects.distribution.stripe_unit(), file.written);
        for index in objects.copies(place.index) {
            let number = objects.iod(index);
            let iod = self.room.iods.registered(number)?.id;
            let there = |kind: Kind, text: String| {
                let finding = Finding { range: Some(range), ..kind.found(Some(file.id), Some(iod), text) };
                Ok(Look::Found(finding))
            };
            match objects.ask_size(index).await {
                Ok(reply) if reply.size > place.offset => {}
                Ok(reply) if reply.size == 0 && reply.allocated == 0 => {
                    return there(
                        Kind::ObjectMissing,
                        format!("byte {last} was written, but its object does not exist"),
                    );
                }
                Ok(reply) => {
                    let text = format!(
                        "byte {last} was written at {} of its object, which has {} bytes",
                        place.offset, reply.size
                    );
                    return there(Kind::ObjectShort, text);
                }
                Err(Asked::Away) => return Ok(Look::Unasked(number, iod)),
                Err(Asked::Refused(Status::Corrupt, detail)) => return there(Kind::ObjectDamaged, detail),
                // A newer generation or a scrubbed object are looked at with the objects.
                Err(Asked::Refused(..)) => {}
            }
        }
        Ok(Look::Fine)
    }
}
