"""An auth manager that lets each user read some DAGs only, as those of companies do."""

from collections.abc import Container
from typing import Any, ClassVar

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager


class SomeDagsOnly(SimpleAuthManager):
    """Users without an entry may read everything."""

    readable: ClassVar[dict[str, Container[str]]] = {}
    without_xcom: ClassVar[dict[str, Container[str]]] = {}
    """The DAGs that a user may read but for their XCom."""
    without_assets: ClassVar[Container[str]] = ()
    """Users who may read no asset."""
    without_aliases: ClassVar[Container[str]] = ()
    """Users who may read no alias of an asset, which Airflow's list of assets shows too."""

    def is_authorized_asset(self, *, method: Any, user: Any, details: Any = None) -> bool:
        may = super().is_authorized_asset(method=method, user=user, details=details)
        return bool(may) and user.username not in self.without_assets

    def is_authorized_asset_alias(self, *, method: Any, user: Any, details: Any = None) -> bool:
        may = super().is_authorized_asset_alias(method=method, user=user, details=details)
        return bool(may) and user.username not in self.without_aliases

    def is_authorized_dag(
        self, *, method: Any, user: Any, access_entity: Any = None, details: Any = None
    ) -> bool:
        dag_id = None if details is None else details.id
        if access_entity is DagAccessEntity.XCOM and dag_id in self.without_xcom.get(user.username, ()):
            return False
        allowed = self.readable.get(user.username)
        if allowed is not None and dag_id is not None and dag_id not in allowed:
            return False
        return bool(
            super().is_authorized_dag(method=method, user=user, access_entity=access_entity, details=details)
        )
