//! The check of the namespace, and of the mgr's records in the registry of the metadata store.

use super::finding::{self, Kind};
use super::run::{Check, Checked, Stop};
use crate::clock::now;
use crate::{clients, iods};
use bytes::Bytes;
use meta::engine::Walk;
use meta::{CheckMemory, Event, Fault, Mended};
use tokio::sync::mpsc;
use types::{FileId, Status};

/// Largest number of files in a namespace that the check reads on an async thread. A check of a larger namespace uses a
/// blocking thread, so that it does not delay other tasks.
const ON_THE_SPOT: u64 = 20_000;
/// Capacity of the channel from the blocking thread to the check task, in messages.
const WAITING: usize = 256;
/// Largest number of registry records that the check reads.
const REGISTRY_MAX: usize = 1 << 17;

impl Check {
    /// Checks the invariants between names, inodes and the lists of the namespace, such as the orphan list.
    pub(super) async fn names(&mut self) -> Checked {
        let files = self.volume.namespace.files().unwrap_or(0);
        self.begin("names and inodes", 0).await?;
        if files <= ON_THE_SPOT {
            let mut events = Vec::new();
            self.volume.namespace.check_into(CheckMemory::default(), &mut |event| {
                events.push(event);
                Walk::On
            })?;
            for event in events {
                self.event(event).await?;
            }
            return Ok(());
        }
        let (tell, mut events) = mpsc::channel(WAITING);
        let namespace = self.volume.namespace.clone();
        let looking = tokio::task::spawn_blocking(move || {
            // `blocking_send` fails when the check task has ended and dropped the receiver.
            namespace.check_into(CheckMemory::default(), &mut |event| match tell.blocking_send(event) {
                Ok(()) => Walk::On,
                Err(_) => Walk::Stop,
            })
        });
        while let Some(event) = events.recv().await {
            self.event(event).await?;
        }
        looking.await.map_err(|_| Stop::Failed(Status::ServerFault))?.map_err(Stop::Failed)
    }

    async fn event(&mut self, event: Event) -> Checked {
        match event {
            Event::Looked(records) => {
                self.counts.records += records;
                self.looked(records).await
            }
            Event::Found(fault) => self.fault(&fault).await,
        }
    }

    async fn fault(&mut self, fault: &Fault) -> Checked {
        // The namespace check reads a snapshot of the store. So another task, or an earlier repair of this check, may
        // have repaired the fault already.
        match self.volume.namespace.would_mend(fault) {
            Ok(Mended::Gone) => return Ok(()),
            Ok(Mended::Yes | Mended::No) | Err(Status::Corrupt) => {}
            Err(e) => return Err(e.into()),
        }
        let mut finding = finding::of(fault);
        if let Some((dir, name)) = fault.name() {
            let mut path = crate::paths::directory_of(&self.volume.namespace, dir).await?;
            path.push(b'/');
            path.extend_from_slice(name);
            finding.paths.push(Bytes::from(path));
        }
        if !self.repair {
            return self.found(finding).await;
        }
        let outcome = match fault {
            Fault::Record { key } if clients::is_record(key.get(1..).unwrap_or_default()) && key[0] == b'r' => {
                self.volume.namespace.registry_put(now(), &key[1..], None).await.map(|()| Mended::Yes)
            }
            fault => self.volume.namespace.mend(now(), fault).await,
        };
        if let (Ok(Mended::Yes), Some(file)) = (&outcome, fault.file()) {
            self.follow(fault, file).await?;
        }
        match outcome {
            Ok(Mended::Gone) => Ok(()),
            outcome => self.mended(finding, outcome.map(|mended| mended == Mended::Yes)).await,
        }
    }

    /// Updates the copies of records in the mgr's memory after the check has repaired a fault in the store.
    async fn follow(&mut self, fault: &Fault, file: FileId) -> Checked {
        match fault {
            Fault::NoTail { .. } | Fault::Record { .. } => self.volume.intents.reload(file)?,
            Fault::StrayIntent { .. } => self.volume.intents.deleted(file),
            Fault::LostOrphan { .. } if !crate::background::finish_intents::in_use(&self.server, file) => {
                self.volume.reap(file).await?
            }
            _ => {}
        }
        Ok(())
    }

    /// Checks that the mgr can decode the registry records of iods and clients.
    pub(super) async fn registry(&mut self) -> Checked {
        self.begin("records of iods and clients", 0).await?;
        let records = self.volume.namespace.registry_survey(b"", REGISTRY_MAX)?;
        self.looked(records.len() as u64).await?;
        let mut numbers = std::collections::HashMap::new();
        for (key, value) in records {
            // The record has no value because its checksum is wrong. The namespace check reports this damage, so do not
            // report it twice.
            let Some(value) = value else { continue };
            let (client, why) = match iods::record(&key, &value) {
                Some(Ok(number)) => match numbers.insert(number, key.clone()) {
                    None => continue,
                    Some(_) => (false, format!("two iods have number {number}")),
                },
                Some(Err(why)) => (false, why),
                None => match clients::record(&key, value) {
                    Some(Err(why)) => (true, why),
                    _ => continue,
                },
            };
            let text = format!("record {}: {why}", key.escape_ascii());
            let finding = Kind::RegistryDamaged.found(None, None, text);
            if self.repair && client {
                let removed = self.volume.namespace.registry_put(now(), &key, None).await;
                self.mended(finding, removed.map(|()| true)).await?;
            } else if self.repair {
                self.mended(finding, Ok(false)).await?;
            } else {
                self.found(finding).await?;
            }
        }
        Ok(())
    }
}
