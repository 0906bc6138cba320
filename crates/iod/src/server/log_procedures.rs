//! The procedures for log files, as methods of an iod's connection: OPEN_LOG, REGISTER, LOOKUP and REMOVE_LOGS.

use log_index::{LOGS_MAX, LogNumber, Run, Source};
use types::{FileId, Generation, ObjectId, Status};
use wire::native::{
    Capability, Failure, LookupArgs, LookupReply, Nothing, ObjectArgs, OpenLogReply, RegisterArgs, RegisterReply,
    Rights,
};

use super::connection::Connection;
use super::socket::Channel;
use crate::store::Registration;

/// Largest number of runs in one REGISTER.
const RUNS_MAX: usize = 4096;

impl<C: Channel> Connection<C> {
    /// Checks a capability for the index of a file; returns the file, and the generation of the capability.
    fn index(&self, cap: &Capability, needed: Rights) -> Result<(FileId, Generation), Failure> {
        self.check(cap, needed)?;
        // The MAC of a capability is also valid for the data logs of the file. But only the index has registrations.
        if cap.object != ObjectId::index(cap.object.file) {
            return Err(Status::CapRefused.into());
        }
        Ok((cap.object.file, cap.generation))
    }

    pub(super) fn open_log(&mut self, args: ObjectArgs) -> Result<OpenLogReply, Failure> {
        let (file, generation) = self.index(&args.cap, Rights::WRITE)?;
        let log = self.store()?.open_log(file, generation)?;
        Ok(OpenLogReply { log: log.0 })
    }

    pub(super) fn register(&mut self, args: RegisterArgs) -> Result<RegisterReply, Failure> {
        let (file, generation) = self.index(&args.cap, Rights::WRITE)?;
        let registration = Registration {
            log: LogNumber(args.log),
            sequence: args.sequence,
            durable: args.durable,
            runs: decode(&args)?,
        };
        let store = self.store()?;
        let pending = store.register(file, generation, registration)?;
        Ok(RegisterReply { verifier: store.verifier(), pending: u32::try_from(pending).unwrap_or(u32::MAX) })
    }

    pub(super) fn lookup(&mut self, args: LookupArgs) -> Result<LookupReply, Failure> {
        let (file, generation) = self.index(&args.cap, Rights::READ)?;
        let found = self.store()?.lookup(file, generation, args.range, args.only_durable)?;
        Ok(LookupReply { covered: found.covered, end: found.end, runs: found.runs.into() })
    }

    pub(super) fn remove_logs(&mut self, args: ObjectArgs) -> Result<Nothing, Failure> {
        let (file, generation) = self.index(&args.cap, Rights::ADMIN)?;
        self.store()?.remove_logs(file, generation)?;
        Ok(Nothing)
    }
}

/// Decodes the runs of a REGISTER. Refuses log numbers that no data log can have.
fn decode(args: &RegisterArgs) -> Result<Vec<Run>, Failure> {
    let refused = |detail: String| Failure { status: Status::Inval, detail: Some(detail) };
    let runs = log_index::decode(&args.runs, RUNS_MAX).map_err(|error| refused(error.to_string()))?;
    let known = |run: &Run| match run.source() {
        Source::Log { log, .. } => log.0 < LOGS_MAX,
        Source::Base => true,
    };
    if args.log >= LOGS_MAX || !runs.iter().all(known) {
        return Err(refused(format!("a log number is not below {LOGS_MAX}")));
    }
    Ok(runs)
}
