-- What the reconciler goes by: when a run's message was due at the broker, and how often it was suspected to be gone.

alter table rota.run add column dispatched_at timestamptz;          -- of a later number; the first one's is claimed_at
alter table rota.run add column audits smallint not null default 0; -- times that its message was taken for lost

insert into rota.duty (name) values ('reconciler');
